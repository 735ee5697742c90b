"""Machines with our tags that no node of Slurm's stands for: they cost money and do no work. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm.power.findings import Finding
from slurm.power.instances import Found, Instance
from slurm.power.slurmctld import PowerNode

_SOON_S = 60.0
# SuspendProgram may be at it.
_SUSPENDED_S = 300.0
# `muster up` launches the nodes that are always there before slurmctld hears of them, and they take a while to boot.
_STARTING_S = 1800.0


def orphans(found: Found, nodes: Mapping[str, PowerNode], static: Collection[str]) -> Iterator[Finding]:
    owners = _owners(found, nodes)
    for machine in found.machines:
        node = nodes.get(machine.name)
        if not machine.running:
            yield Finding("orphan", machine.id, "it was stopped, and nobody starts it again", _SOON_S)
        elif not machine.name:
            yield Finding("orphan", machine.id, "it has no name", _SUSPENDED_S)
        elif node is None:
            yield Finding("orphan", machine.id, f"Slurm has no node {machine.name}", _STARTING_S)
        elif owners[machine.name] != machine.id:
            yield Finding("orphan", machine.id, f"{machine.name} is another machine", _SOON_S)
        elif node.powered_down:
            grace = _STARTING_S if machine.name in static else _SUSPENDED_S
            yield Finding("orphan", machine.id, f"Slurm has {machine.name} powered down", grace)


def _owners(found: Found, nodes: Mapping[str, PowerNode]) -> dict[str, str]:
    """Of two machines with one name that one is the node which Slurm talks to; else the older."""
    owners = {name: machine.id for name, machine in found.named().items()}
    return owners | {m.name: m.id for m in found.machines if m.running and _talks(m, nodes)}


def _talks(machine: Instance, nodes: Mapping[str, PowerNode]) -> bool:
    return machine.name in nodes and bool(machine.address) and nodes[machine.name].address == machine.address
