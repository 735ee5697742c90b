"""Kernel limits that many nodes on one machine need; only root can raise them, and few nodes do without."""

import os
from pathlib import Path

from setup.facts import Facts
from setup.paths import Paths

INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
# The systemd of each node holds about five inotify instances of the host; kernels allow 128, enough for some 25 nodes.
NEEDED = 4096


def cached(limit: Path = INSTANCES) -> bool:
    """Nothing to raise, or nobody who may: then a cluster with too many nodes says so itself."""
    return os.geteuid() != 0 or not os.access(limit, os.W_OK) or int(limit.read_text()) >= NEEDED


def act(_paths: Paths, _facts: Facts, log: Path, limit: Path = INSTANCES) -> None:
    with log.open("a") as out:
        out.write(f"{limit}: {limit.read_text().strip()} -> {NEEDED}\n")
    limit.write_text(f"{NEEDED}\n")
