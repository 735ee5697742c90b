"""Nodes that need another machine under the same name, and those that must be given back to Slurm. Pure.

A node is replaced by powering it down: Slurm runs SuspendProgram, forgets DOWN and DRAIN, and powers it up when a job
wants it. One that is always there is started again at once. A node that a person took away is left as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slurm.power import ceiling, cooldown
from slurm.power.findings import Finding
from slurm.power.instances import Found
from slurm.power.reasons import BUDGET, CAPACITY, HEALTH, LOST, NEVER_CAME, SILENT, may_be_replaced
from slurm.power.slurmctld import PowerNode

# EC2 shows a new machine a little after the call that started it.
_LOST_S = 60.0
_NEVER_CAME_S = 180.0
# A fault that comes and goes, and a network that was away, give the node back by themselves within that.
_PASSING_S = 300.0
_START_S = 60.0


def replacements(found: Found, nodes: Mapping[str, PowerNode], waiting: Collection[str] = ()) -> Iterator[Finding]:
    """`waiting`: nodes for which a machine is still being looked for."""
    there = {name for name, machine in found.named().items() if machine.running}
    for name, node in nodes.items():
        if node.off or name in waiting:
            continue
        if node.away:
            if not node.busy and may_be_replaced(node.is_.reason):
                yield Finding("replace", name, node.is_.reason, _patience(node.is_.reason))
        elif name not in there and node.coming:
            yield Finding("never-came", name, NEVER_CAME, _NEVER_CAME_S)
        elif name not in there:
            yield Finding("lost", name, LOST, _LOST_S)


def to_start(
    found: Found, nodes: Mapping[str, PowerNode], static: Collection[str], held_back: Collection[str]
) -> Iterator[Finding]:
    """Nodes that are always there, and are not; `held_back`: of a closed group, or stopped by the budget."""
    there = {name for name, machine in found.named().items() if machine.running}
    for name in sorted(static):
        node = nodes.get(name)
        if node and node.powered_down and not node.away and name not in there and name not in held_back:
            yield Finding("start", name, "it is always there", _START_S)


def _patience(reason: str) -> float:
    if reason.startswith(CAPACITY):
        return cooldown.SECONDS
    if reason.startswith(BUDGET):
        return ceiling.ASK_EVERY_S
    return _PASSING_S if reason.startswith((HEALTH, SILENT)) else 0.0
