"""Keep topology.conf in agreement with the machines that exist.

`python -m slurm.power.topology NODES` adapts the file to a changed set of nodes before Slurm reloads its configuration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from slurm.config.blocks import has_blocks
from slurm.config.topology import NAME, check_topology, fit_topology, render_topology
from slurm.hostlist import expand
from slurm.power.context import Context
from slurm.power.install import STATE
from slurm.power.launcher import Machine, Place
from slurm.power.memory import Memory, replace_file

_PLACES = "places"


def refresh(context: Context, machines: Iterable[Machine], nodes: Collection[str]) -> bool:
    """Return whether the file changed and Slurm must read it again.

    Without a file the topology plugin is off. Blocks do not depend on where machines are: each is a whole node group.
    """
    path = context.etc / NAME
    if not path.exists() or has_blocks(path.read_text()):
        return False
    named = {machine.name: machine for machine in machines if machine.running and machine.name in nodes}
    places = _read_places(context, [machine.id for machine in named.values()])
    text = render_topology(nodes, {name: places[m.id] for name, m in named.items() if m.id in places})
    if check_topology(text, nodes) or text == path.read_text():
        return False
    replace_file(path, text)
    return True


def _read_places(context: Context, ids: Sequence[str]) -> dict[str, Place]:
    """Return places by machine id; machines never move, so only the places of new ones are requested."""
    saved, existing = context.memory.load(_PLACES), frozenset(ids)
    places: dict[str, Place] = {machine: tuple(place) for machine, place in saved.items() if machine in existing}
    new = [machine for machine in ids if machine not in places]
    if new:
        places |= context.launcher.read_places(new)
    context.memory.save(_PLACES, {machine: list(place) for machine, place in places.items()})
    return places


def fit_file(path: Path, memory: Memory, nodes: Collection[str]) -> None:
    """Make a topology file list exactly these nodes; nodes that it already has keep their place."""
    with memory.lock():
        text = path.read_text()
        fitted = fit_topology(text, nodes)
        if fitted != text:
            replace_file(path, fitted)


def main(argv: Sequence[str]) -> int:
    """Adapt the controller's file to the nodes in the first argument."""
    root = Path(os.environ.get("MUSTER_ROOT", "/"))
    fit_file(root / "etc/slurm" / NAME, Memory(root / STATE.lstrip("/")), expand(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
