"""Limits on launches: a breaker for groups whose nodes never come up, and the monthly budget.

Without the breaker, a broken image or bundle would launch expensive machines again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cluster.names import group_of
from slurm.control.nodes import NodeState
from slurm.power.launcher import Launcher, Spending
from slurm.power.memory import Memory

# Like ParallelCluster's protected mode; a node that hangs until ResumeTimeout counts like one that fails at once.
BREAKER_LIMIT = 10
"""Consecutive failures after which a group's partition is closed until a person opens it."""
BREAKER = "breaker"
# The cloud updates its figures a few times a day.
BUDGET_INTERVAL_S = 900.0
_BUDGET = "ceiling"

Counts = Mapping[str, Mapping[str, Any]]
"""Name of the saved counts: consecutive failures of each group, and whether muster closed its partition."""


def count_failures(memory: Memory, nodes: Iterable[str]) -> None:
    """Add nodes that did not come up to the counts of their groups."""
    counts = {group: dict(count) for group, count in memory.load(BREAKER).items()}
    for node in nodes:
        count = counts.setdefault(group_of(node), {"failures": 0, "closed": False})
        count["failures"] += 1
    memory.save(BREAKER, counts)


def list_groups_to_close(counts: Counts) -> list[str]:
    """Return the groups that reached the limit and are still open."""
    return [group for group, count in counts.items() if count["failures"] >= BREAKER_LIMIT and not count["closed"]]


def reset_counts(counts: Counts, came_up: Collection[str], open_partitions: Collection[str]) -> dict[str, Any]:
    """Return the counts without groups that have a new working node, or whose partition a person opened again."""
    return {
        group: dict(count)
        for group, count in counts.items()
        if group not in came_up and not (count["closed"] and group in open_partitions)
    }


def list_closed_groups(counts: Counts) -> set[str]:
    """Return the groups whose partition the breaker closed."""
    return {group for group, count in counts.items() if count["closed"]}


def mark_closed(counts: Counts, group: str) -> dict[str, Any]:
    """Return the counts with a group marked as closed by muster."""
    return {**counts, group: {**counts[group], "closed": True}}


def read_spending(launcher: Launcher, memory: Memory, now: float) -> Spending | None:
    """Return the month's spending, read at intervals; None without a budget, or if it cannot be read."""
    saved = memory.load(_BUDGET)
    if not saved or now - saved["at"] >= BUDGET_INTERVAL_S:
        # The time is saved before the request, so that a cloud that does not answer delays only one sweep.
        memory.save(_BUDGET, saved | {"at": now})
        spending = launcher.read_spending()
        memory.save(_BUDGET, {"at": now} | ({"spent": spending.spent, "limit": spending.limit} if spending else {}))
    return last_spending(memory)


def last_spending(memory: Memory) -> Spending | None:
    """Return the spending that was read last; None if there is none."""
    saved = memory.load(_BUDGET)
    return Spending(saved["spent"], saved["limit"]) if "spent" in saved else None


def list_idle_gpu_nodes(nodes: Mapping[str, NodeState]) -> list[str]:
    """Return the nodes with GPUs that are up and have no job: those to stop when the budget is spent."""
    return [name for name, node in nodes.items() if node.gpus and node.is_up and not node.busy]
