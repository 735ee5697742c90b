"""`python -m slurm.power.fit_topology NODES`: topology.conf for other nodes than it has, before Slurm reads both."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

from slurm.hostlist import expand
from slurm.power.memory import Memory, replace
from slurm.power.programs import STATE
from slurm.power.topology_file import NAME, fitted


def fit(path: Path, memory: Memory, nodes: Collection[str]) -> None:
    with memory.lock():
        text = path.read_text()
        new = fitted(text, nodes)
        if new != text:
            replace(path, new)


def main() -> int:
    root = Path(os.environ.get("MUSTER_ROOT", "/"))
    fit(root / "etc/slurm" / NAME, Memory(root / STATE.lstrip("/")), expand(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
