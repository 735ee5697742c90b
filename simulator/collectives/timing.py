"""The time of one collective: the quickest of the ways NCCL has."""

from __future__ import annotations

from functools import cache, lru_cache

from simulator.collectives.candidates import Candidate, candidates
from simulator.collectives.constants import fitted
from simulator.collectives.fabric import fabric_of
from simulator.collectives.group import Group, Op
from simulator.hardware.system import System


@lru_cache(maxsize=1 << 17)
def time_s(op: Op, size: float, group: Group, system: System) -> float:
    """`size`: bytes of the full array, as nccl-tests count; of an all-gather what comes out, of a send what is sent."""
    if group.ranks == 1 or size <= 0:
        return 0.0
    if system.exchanges is not None:
        return system.exchanges.seconds(op, size, group.ranks, group.per_node)
    return min(way.time_us(size) for way in _ways(op, group, system)) * 1e-6


def choice(op: Op, size: float, group: Group, system: System) -> Candidate:
    """The algorithm and protocol behind `time_s`."""
    if group.ranks == 1:
        raise ValueError("group.ranks: 1; allowed: 2 or more, one rank exchanges nothing")
    return min(_ways(op, group, system), key=lambda way: way.time_us(size))


@cache
def _ways(op: Op, group: Group, system: System) -> tuple[Candidate, ...]:
    return candidates(op, fabric_of(group, system, fitted()), fitted())
