"""What people should be told: conditions of nodes, queue, gate and budget, and which of them are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm.control.jobs import WaitingJob
from slurm.control.nodes import NodeState
from slurm.health.drain import CAP_PREFIX, HELD_PREFIX, PREFIX, TRIED_PREFIX, counts_as_ours
from slurm.health.registry import may_reboot
from slurm.health.remedy import REBOOT_S

# A drain that its node ends itself, because too many of the group were drained at once, is no news.
DRAIN_GRACE_S = 10.0
LOST_GRACE_S = 60.0
"""How long a node may be silent, for example while its slurmd starts."""
SILENT_GRACE_S = 120.0
"""How long slurmctld or slurmdbd may be silent, for example during an upgrade."""
REPEAT_S = 1800.0
"""A condition that ends and returns within this time is not reported again."""
# Starts of the reasons of jobs that wait for the cluster, and not for a person, a date, a limit or another job.
_WAITS_FOR_NODES = ("None", "Resources", "Priority", "ReqNodeNotAvail", "Nodes required", "PartitionDown")
_SLURM_USER = "slurm"
_NO_RECORDS = "slurmdbd or its database does not answer: jobs run, and slurmctld stores their records until it is back"
# Nodes without a machine have these reasons for hours, and jobs that wait for them are reported as a stuck queue.
_NOT_LOST = ("muster: capacity: ", "muster: budget: ", "muster: the group", "muster: nothing was", "muster: no job")


@dataclass(frozen=True)
class View:
    """The state of the cluster at a moment."""

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    waiting: Sequence[WaitingJob] = ()
    spent: str = ""
    """Description of the spent budget; empty if there is none, or if it is not spent."""
    answers: bool = True
    """Whether slurmctld answers."""
    keeps_records: bool = True
    """Whether slurmdbd and its database answer."""


@dataclass(frozen=True)
class Condition:
    """Something that people should know."""

    key: str
    """Identifies the condition while its text changes."""
    text: str
    grace_s: float = 0.0
    """How long it must last before it is reported."""


def list_conditions(view: View, stuck_s: float) -> list[Condition]:
    """Return the conditions of a moment; `stuck_s` is how long jobs may wait while nothing runs."""
    if not view.answers:
        return [Condition("slurmctld", "slurmctld does not answer", SILENT_GRACE_S)]
    records = [] if view.keeps_records else [Condition("slurmdbd", _NO_RECORDS, SILENT_GRACE_S)]
    budget = [Condition("budget", f"the budget is spent: {view.spent}")] if view.spent else []
    return [*_list_node_conditions(view.nodes), *_list_stuck_queues(view, stuck_s), *records, *budget]


def select_new(
    conditions: Sequence[Condition], history: Mapping[str, Mapping[str, Any]], now: float
) -> tuple[list[Condition], dict[str, dict[str, Any]]]:
    """Return the conditions to report now, and for the next call when each began, was last seen and was reported."""
    new, updated = [], {}
    for condition in conditions:
        entry = {"since": now, "reported": False, **history.get(condition.key, {})}
        if now - entry.get("seen", now) > REPEAT_S:
            entry = {"since": now, "reported": False}
        entry["seen"] = now
        if not entry["reported"] and now - entry["since"] >= condition.grace_s:
            entry["reported"] = True
            new.append(condition)
        updated[condition.key] = entry
    # What was not reported begins anew if it returns.
    ended = {
        key: dict(entry)
        for key, entry in history.items()
        if key not in updated and entry["reported"] and now - entry["seen"] <= REPEAT_S
    }
    return new, ended | updated


def _list_node_conditions(nodes: Mapping[str, NodeState]) -> list[Condition]:
    conditions = []
    for name, node in nodes.items():
        if node.powered_off or node.powering_up:
            continue
        if node.state == "DOWN" or "NOT_RESPONDING" in node.flags:
            if not node.reason.startswith(_NOT_LOST) and not _is_awaited(node):
                text = f"{name} is lost: {node.reason or 'it does not answer'}"
                conditions.append(Condition(f"lost {name}", text, REBOOT_S if _may_be_booting(node) else LOST_GRACE_S))
        elif "DRAIN" in node.flags and _is_automatic(node):
            conditions.append(Condition(f"drain {name}", f"{name} is drained: {node.reason}", DRAIN_GRACE_S))
        if node.comment.startswith(CAP_PREFIX):
            problem = node.comment[len(CAP_PREFIX) :]
            text = f"{name} has a problem and stays in service, because enough of its group are drained: {problem}"
            conditions.append(Condition(f"cap {name}", text))
        elif node.comment.startswith(HELD_PREFIX):
            conditions.append(Condition(f"user {name}", f"{name}: {node.comment}"))
    return conditions


def _is_awaited(node: NodeState) -> bool:
    """Return whether the node has never registered; slurmctld marks it as down if it does not come."""
    return node.state == "UNKNOWN" and not node.version


def _may_be_booting(node: NodeState) -> bool:
    """Return whether the health checks may have rebooted the node to end its drain."""
    is_tried = node.reason.startswith(TRIED_PREFIX)
    return "DRAIN" in node.flags and node.reason.startswith(PREFIX) and not is_tried and may_reboot(node.reason)


def _is_automatic(node: NodeState) -> bool:
    """Return whether a program drained the node: a person who did it knows."""
    return counts_as_ours(node.reason) or node.by == _SLURM_USER


def _list_stuck_queues(view: View, stuck_s: float) -> list[Condition]:
    """Return the partitions in which jobs wait for nodes while nothing runs."""
    busy = {partition for node in view.nodes.values() if node.busy for partition in node.partitions}
    waiting: dict[str, list[WaitingJob]] = {}
    for job in view.waiting:
        partitions = job.partition.split(",")
        if job.reason.startswith(_WAITS_FOR_NODES) and busy.isdisjoint(partitions):
            waiting.setdefault(partitions[0], []).append(job)
    return [
        Condition(
            f"stuck {partition}",
            f"the queue of {partition} is stuck: {'1 job waits' if len(jobs) == 1 else f'{len(jobs)} jobs wait'} "
            f"while nothing runs, {jobs[0].id} for {jobs[0].reason}",
            stuck_s,
        )
        for partition, jobs in waiting.items()
    ]
