"""Keeps topology.conf in agreement with the machines that exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from slurm.power.cloud import Cloud
from slurm.power.instances import Instance
from slurm.power.memory import Memory, replace
from slurm.power.topology_file import NAME, Place, problems, render

_PLACES = "places"
# As many ids as DescribeInstanceTopology takes.
_BATCH = 100


def refresh(cloud: Cloud, memory: Memory, etc: Path, machines: Iterable[Instance], nodes: Collection[str]) -> bool:
    """Whether the file changed, and Slurm must read it again. Without a file the plugin is off: nothing to do."""
    if not (etc / NAME).exists():
        return False
    named = {machine.name: machine for machine in machines if machine.running and machine.name in nodes}
    places = _places(cloud, memory, [machine.id for machine in named.values()])
    text = render(nodes, {name: places[m.id] for name, m in named.items() if m.id in places})
    if problems(text, nodes) or text == (etc / NAME).read_text():
        return False
    replace(etc / NAME, text)
    return True


def _places(cloud: Cloud, memory: Memory, ids: Sequence[str]) -> dict[str, Place]:
    """A machine never moves: only new ones are asked for. One that has just started has no place yet."""
    kept = {one: tuple(place) for one, place in memory.load(_PLACES).items() if one in ids}
    new = [one for one in ids if one not in kept]
    for first in range(0, len(new), _BATCH):
        found = cloud.pages("ec2", "describe_instance_topology", "Instances", InstanceIds=new[first : first + _BATCH])
        kept |= {one["InstanceId"]: tuple(one["NetworkNodes"]) for one in found if one.get("NetworkNodes")}
    memory.keep(_PLACES, {one: list(place) for one, place in kept.items()})
    return kept
