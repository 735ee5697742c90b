"""SuspendProgram: the machines behind these names are given back."""

from __future__ import annotations

import sys
from collections.abc import Collection

from slurm.hostlist import expand, hostlist
from slurm.power.instances import find
from slurm.power.program import Desk, log, run
from slurm.power.terminate import terminate


def suspend(desk: Desk, nodes: Collection[str]) -> list[str]:
    """All machines of each name: if a launch ever made two, both go. One that was started since we were asked stays:
    Slurm may have called for the node again while we waited for another program to end."""
    asked = desk.now()
    with desk.memory.lock():
        machines = [m for m in find(desk.cloud, desk.fleet).machines if m.name in nodes and m.launched <= asked]
        ended = terminate(desk.cloud, machines)
    log.info("%s: ended %s", hostlist(nodes), ", ".join(ended) or "nothing, there was no machine")
    return ended


def main() -> int:
    nodes = expand(sys.argv[1] if len(sys.argv) > 1 else "")
    return run("suspend", lambda desk: suspend(desk, nodes))


if __name__ == "__main__":
    sys.exit(main())
