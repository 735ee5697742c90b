"""Run the ranks of a benchmark on containers, each a node; needs Docker and the node image."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from cluster import names
from setup import env, pins
from setup.paths import Paths

REPO = Path(__file__).resolve().parent.parent


def run_on_nodes(name: str, module: str, options: Sequence[str], mounts: Sequence[str] = (), count: int = 2) -> int:
    """Start a module on each node, show what they print, and return the highest exit status, or number of a signal.

    A node gets its number as NODE, the number of nodes as NODES, and the name of the first node as MASTER_ADDR.
    `mounts` are further options for -v.
    """
    network, label = f"muster-{name}-{uuid.uuid4().hex[:8]}", f"{names.CLUSTER}=bench-{name}"
    # Without a handler, SIGTERM would skip the clean-up below.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        create = ["docker", "network", "create", "--internal", "--label", label, network]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        commands = [_make_command(network, label, (node, count), mounts, [module, *options]) for node in range(count)]
        nodes = [subprocess.Popen(command) for command in commands]
        # A node that a signal has killed has a negative status.
        return max(abs(node.wait()) for node in nodes)
    finally:
        for node in range(count):
            subprocess.run(["docker", "rm", "-f", f"{network}-{node}"], check=False, capture_output=True)
        subprocess.run(["docker", "network", "rm", network], check=False, stdout=subprocess.DEVNULL)


def _make_command(
    network: str, label: str, place: tuple[int, int], more_mounts: Sequence[str], program: Sequence[str]
) -> list[str]:
    """Return the command that runs a program on a node; `place` is its number and the number of nodes."""
    node, count = place
    python = f"/shared/env/{env.key(Paths(root=REPO, cache=Paths.from_environment().cache))}/bin/python"
    mounts = ["-v", f"{pins.ENV_VOLUME}:/shared/env:ro", "-v", f"{REPO}:/repo:ro"]
    mounts += [word for mount in more_mounts for word in ("-v", mount)]
    box = ["--rm", "--init", "--name", f"{network}-{node}", "--network", network, "--cap-add", "NET_ADMIN"]
    variables = ["-e", "GLOO_SOCKET_IFNAME=eth0", "-e", "OMP_NUM_THREADS=1", "-e", "PYTHONDONTWRITEBYTECODE=1"]
    variables += ["-e", f"MASTER_ADDR={network}-0", "-e", f"NODE={node}", "-e", f"NODES={count}"]
    options = ["--label", label, "--shm-size", "1g", "-w", "/repo"]
    return ["docker", "run", *box, *options, *variables, *mounts, pins.NODE_IMAGE, python, "-m", *program]
