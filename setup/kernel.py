"""Kernel limits that many nodes on one machine need; only root can raise them, and few nodes do without."""

import os
from collections.abc import Iterator
from pathlib import Path

from setup.facts import Facts
from setup.paths import Paths

SYSCTLS = Path("/proc/sys")
NEEDED = {
    # The systemd of each node holds about five inotify instances of the host; kernels allow 128: some 25 nodes.
    "fs/inotify/max_user_instances": 4096,
    # All network namespaces share the host's table of neighbours. 34 nodes that know each other fill 34 x 33 places,
    # kernels allow 1024: https://docs.kernel.org/networking/ip-sysctl.html (neigh/default/gc_thresh3).
    "net/ipv4/neigh/default/gc_thresh1": 4096,
    "net/ipv4/neigh/default/gc_thresh2": 8192,
    "net/ipv4/neigh/default/gc_thresh3": 16384,
}


def cached(sysctls: Path = SYSCTLS) -> bool:
    """Nothing to raise, or nobody who may: then a cluster with too many nodes says so itself."""
    return os.geteuid() != 0 or not any(_too_low(sysctls))


def act(_paths: Paths, _facts: Facts, log: Path, sysctls: Path = SYSCTLS) -> None:
    with log.open("a") as out:
        for name, limit in _too_low(sysctls):
            out.write(f"{name}: {limit.read_text().strip()} -> {NEEDED[name]}\n")
            try:
                limit.write_text(f"{NEEDED[name]}\n")
            except OSError as error:
                out.write(f"{name}: left as it is ({error})\n")


def _too_low(sysctls: Path) -> Iterator[tuple[str, Path]]:
    """Limits to raise; those that this kernel lacks or does not let us write are left alone."""
    for name, needed in NEEDED.items():
        limit = sysctls / name
        if os.access(limit, os.W_OK) and int(limit.read_text()) < needed:
            yield name, limit
