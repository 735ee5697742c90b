"""ResumeFailProgram: nodes that did not come up in time; their machines go, and the breaker counts them."""

from __future__ import annotations

import sys
from collections.abc import Collection

from slurm.hostlist import expand, hostlist
from slurm.power import breaker
from slurm.power.program import Desk, log, run
from slurm.power.suspend import suspend


def resume_failed(desk: Desk, nodes: Collection[str]) -> None:
    log.info("%s: not up within ResumeTimeout", hostlist(nodes))
    suspend(desk, nodes)
    with desk.memory.lock():
        breaker.failed(desk.memory, nodes)


def main() -> int:
    nodes = expand(sys.argv[1] if len(sys.argv) > 1 else "")
    return run("resume_failed", lambda desk: resume_failed(desk, nodes))


if __name__ == "__main__":
    sys.exit(main())
