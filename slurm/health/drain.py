"""Decide after a round of checks whether to drain a node, resume it or leave it as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm.control.nodes import GroupNode
from slurm.health.check import HealthProblem

PREFIX = "health: "
FABRIC_PREFIX = f"{PREFIX}fabric: "
"""Reason of nodes that `muster fabric` drained; the node's own checks cannot see that fault and never resume it."""
TRIED_PREFIX = f"{PREFIX}after "
"""Start of the reason of a node on which remedies were tried in vain; only another machine is left."""
PROLOG_REASONS = ("Prolog error", "Prolog/Epilog failure")
"""Reasons that Slurm sets itself if the prolog fails and could not set its own."""
DUPLICATE_JOB = "Duplicate jobid"
"""Reason that slurmctld sets if a node still runs another job of the same id: after a crash, ids may be used again."""
KILL_FAILED = "Kill task failed"
"""Reason that Slurm sets if a step does not end after SIGKILL."""
SLURM_REASONS = (*PROLOG_REASONS, DUPLICATE_JOB, KILL_FAILED)
"""Reasons that Slurm sets itself and does not take back, although the fault passes."""
GOOD_ROUNDS = 3
"""Rounds without a problem before a node is resumed, so that an intermittent fault does not resume it in between."""
REASON_MAX_CHARS = 200
"""Longest reason that Slurm shows in its tables."""
HELD_PREFIX = f"{PREFIX}not drained, "
"""Start of the comment of a node that stays in service although it has a problem."""
CAP_PREFIX = f"{HELD_PREFIX}enough of the group are: "
USER_PREFIX = f"{HELD_PREFIX}a user causes it: "


@dataclass(frozen=True)
class Service:
    """Whether Slurm has the node in service, and if not, why."""

    drained: bool
    reason: str = ""

    @property
    def ours(self) -> bool:
        """Whether an earlier round of these checks gave the reason, or Slurm for a fault that passes.

        A drain without a reason counts too: scontrol requires one, but slurmctld drops it when a node that it had as
        powered down registers (clusteracct_storage_g_node_up), and slurmd runs these checks just before that.
        """
        if not self.reason:
            return True
        return counts_as_ours(self.reason) and not self.reason.startswith(FABRIC_PREFIX)


@dataclass(frozen=True)
class Decision:
    """What to do with the node."""

    state: str | None
    """State to set with scontrol; None to leave it."""
    reason: str = ""
    good_rounds: int | None = None
    """Consecutive rounds without a problem, saved for the next round; None if these checks have not drained the node.

    They look at a healthy node only if a number is saved, so a drain that a person set is never theirs to end.
    """


def decide(
    problems: Sequence[HealthProblem], service: Service, good_rounds: int, tried: Sequence[str] = ()
) -> Decision:
    """Return what to do after a round of checks; problems that a user causes are none of the node.

    `tried` are the remedies that did not help, which the reason names.
    """
    if service.drained and not service.ours:
        return Decision(None)
    problems = [problem for problem in problems if problem.blame != "user"]
    if problems:
        prefix = f"{TRIED_PREFIX}{' and '.join(tried)}: " if tried else PREFIX
        reason = (prefix + "; ".join(map(str, problems)))[:REASON_MAX_CHARS]
        return Decision(None if service.drained and reason == service.reason else "drain", reason, good_rounds=0)
    if not service.drained:
        return Decision(None)
    if good_rounds + 1 < GOOD_ROUNDS:
        return Decision(None, good_rounds=good_rounds + 1)
    return Decision("resume")


def counts_as_ours(reason: str) -> bool:
    """Return whether a node with this reason was drained automatically, which the cap limits."""
    return reason.startswith((PREFIX, *SLURM_REASONS))


def decide_drain(node: str, group: Sequence[GroupNode], max_percent: int) -> bool:
    """Return whether a node may be drained, or stay so if it is: only so many of its group may be at a time.

    All nodes run their checks at the same time, so each decides again after its drain. They agree because the drains
    are in the order of slurmctld's clock: those that are too many are the last, and their nodes end them.
    """
    ours = sorted((other.since, other.name) for other in group if other.drained and counts_as_ours(other.reason))
    before = [name for _, name in ours]
    rank = before.index(node) if node in before else len(before)
    return rank < count_drainable(sum(other.powered_on for other in group), max_percent)


def count_drainable(nodes: int, max_percent: int) -> int:
    """Return how many of a group's running nodes may be drained automatically: a share of them, but at least one."""
    return max(1, nodes * max_percent // 100)


def describe_held(problems: Sequence[HealthProblem], *, over_cap: bool) -> str:
    """Return the comment of a node that stays in service, which tells why; empty if it has no problem."""
    prefix = CAP_PREFIX if over_cap else USER_PREFIX
    shown = [str(problem) for problem in problems if over_cap or problem.blame == "user"]
    return (prefix + "; ".join(shown))[:REASON_MAX_CHARS] if shown else ""


def list_checks(reason: str) -> list[str]:
    """Return the names of the checks that a reason of ours lists."""
    return [problem.check for problem in parse_reason(reason)]


def parse_reason(reason: str) -> list[HealthProblem]:
    """Return the problems that a reason of ours lists; the last text may be cut off, not the name of a check."""
    if not reason.startswith(PREFIX):
        return []
    is_tried = reason.startswith(TRIED_PREFIX)
    listed = reason[len(TRIED_PREFIX) :].partition(": ")[2] if is_tried else reason[len(PREFIX) :]
    parts = [part.partition(":") for part in listed.split("; ")]
    if len(reason) >= REASON_MAX_CHARS and len(parts) > 1 and not parts[-1][1]:
        del parts[-1]
    return [HealthProblem(check, text.strip()) for check, _, text in parts]
