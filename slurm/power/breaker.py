"""The breaker: so many nodes of a group in a row that never came up, and its partition is closed until a person looks.

Without it a broken image or bundle launches the dearest machines there are, again and again, all night."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slurm.power.memory import Memory
from slurm.power.node_names import group_of

# As ParallelCluster's protected mode; a node that hangs until ResumeTimeout counts like one that fails at once.
LIMIT = 10
NAME = "breaker"

Counts = Mapping[str, Mapping[str, Any]]
"""By group: failures in a row, and whether we closed the partition."""


def failed(memory: Memory, nodes: Collection[str]) -> None:
    memory.keep(NAME, counted(memory.load(NAME), nodes))


def counted(counts: Counts, nodes: Iterable[str]) -> dict[str, Any]:
    result = {group: dict(count) for group, count in counts.items()}
    for node in nodes:
        count = result.setdefault(group_of(node), {"failures": 0, "closed": False})
        count["failures"] += 1
    return result


def to_close(counts: Counts) -> list[str]:
    return [group for group, count in counts.items() if count["failures"] >= LIMIT and not count["closed"]]


def settled(counts: Counts, came_up: Collection[str], open_partitions: Collection[str]) -> dict[str, Any]:
    """Without the groups of which a node came up since, and without those whose partition a person opened again."""
    return {
        group: dict(count)
        for group, count in counts.items()
        if group not in came_up and not (count["closed"] and group in open_partitions)
    }


def closed(counts: Counts, group: str) -> dict[str, Any]:
    return {**counts, group: {**counts[group], "closed": True}}
