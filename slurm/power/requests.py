"""Requests for nodes, grouped by the jobs that wait for them, and the journal of unfinished requests.

The sweep reads the journal to finish requests of a resume that was killed or met a shortage.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cluster.names import group_of
from slurm.hostlist import expand
from slurm.power.launcher import Unit
from slurm.power.memory import Memory

_JOURNAL = "journal"


@dataclass(frozen=True)
class NodeRequest:
    """Nodes of one group that are useful only together."""

    nodes: Unit
    zone: str = ""
    """Zone in which their job already has nodes."""
    since: float = 0.0
    """When Slurm requested the nodes, in seconds since the epoch."""

    @property
    def group(self) -> str:
        return group_of(self.nodes[0])


def group_by_job(
    nodes: Sequence[str], jobs: Sequence[Mapping[str, Any]], zones: Mapping[str, str]
) -> list[NodeRequest]:
    """Return a request per job and group; jobs that share a node share a request, and other nodes get one each.

    Jobs have the format of the file that slurmctld writes for ResumeProgram; `zones` has the zone of existing nodes.
    """
    order = {name: index for index, name in enumerate(nodes)}
    units: dict[str, _JobNodes] = {}
    for job in jobs:
        resumed = [name for name in expand(str(job.get("nodes_resume") or "")) if name in order]
        occupied = [zones[name] for name in expand(str(job.get("nodes_alloc") or "")) if name in zones]
        for group in dict.fromkeys(map(group_of, resumed)):
            _join(units, [name for name in resumed if group_of(name) == group], occupied[0] if occupied else "")
    joined = {id(unit): unit for unit in units.values()}.values()
    alone = [NodeRequest((name,)) for name in nodes if name not in units]
    return [*(NodeRequest(tuple(sorted(unit.members, key=order.__getitem__)), unit.zone) for unit in joined), *alone]


@dataclass
class _JobNodes:
    """Nodes of jobs that share nodes."""

    members: set[str]
    zone: str


def _join(units: dict[str, _JobNodes], names: Sequence[str], zone: str) -> None:
    """Put nodes into the unit of those that are in one already; `units` has the unit of each node."""
    unit = _JobNodes(set(names), "")
    for other in {id(units[name]): units[name] for name in names if name in units}.values():
        unit = _JobNodes(unit.members | other.members, unit.zone or other.zone)
    unit.zone = unit.zone or zone
    units |= dict.fromkeys(unit.members, unit)


def list_nodes(requests: Iterable[NodeRequest]) -> set[str]:
    """Return the names of all requested nodes."""
    return {name for request in requests for name in request.nodes}


@contextmanager
def journaled(memory: Memory, requests: Sequence[NodeRequest]) -> Iterator[list[NodeRequest]]:
    """Record the requests while the block runs; afterwards only those put into the yielded list stay recorded.

    If an error or a kill ends the block, all of them stay recorded.
    """
    mark, unfinished = uuid.uuid4().hex, list[NodeRequest]()
    memory.save(_JOURNAL, memory.load(_JOURNAL) | _entry(mark, requests))
    yield unfinished
    others = {key: value for key, value in memory.load(_JOURNAL).items() if key != mark}
    memory.save(_JOURNAL, others | _entry(mark, unfinished))


def load_unfinished(memory: Memory) -> list[NodeRequest]:
    """Return the recorded requests."""
    entries = (entry for entries in memory.load(_JOURNAL).values() for entry in entries)
    return [NodeRequest(tuple(nodes), *more) for nodes, *more in entries]


def replace_unfinished(memory: Memory, requests: Sequence[NodeRequest]) -> None:
    """Record these requests instead of the recorded ones."""
    if requests or memory.load(_JOURNAL):
        memory.save(_JOURNAL, _entry(uuid.uuid4().hex, requests))


def _entry(mark: str, requests: Sequence[NodeRequest]) -> dict[str, Any]:
    return {mark: [[list(request.nodes), request.zone, request.since] for request in requests]} if requests else {}
