"""Decide after a round of checks whether to drain a node, resume it or leave it as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm.health.check import HealthProblem

PREFIX = "health: "
FABRIC_PREFIX = f"{PREFIX}fabric: "
"""Reason of nodes that `muster fabric` drained; the node's own checks cannot see that fault and never resume it."""
PROLOG_REASONS = ("Prolog error", "Prolog/Epilog failure")
"""Reasons that Slurm sets itself if the prolog fails and could not set its own."""
GOOD_ROUNDS = 3
"""Rounds without a problem before a node is resumed, so that an intermittent fault does not resume it in between."""
REASON_MAX_CHARS = 200
"""Longest reason that Slurm shows in its tables."""


@dataclass(frozen=True)
class Service:
    """Whether Slurm has the node in service, and if not, why."""

    drained: bool
    reason: str = ""

    @property
    def ours(self) -> bool:
        """Whether an earlier round of these checks, or the prolog, gave the reason.

        A drain without a reason counts too: scontrol requires one, but slurmctld drops it when a node that it had as
        powered down registers (clusteracct_storage_g_node_up), and slurmd runs these checks just before that.
        """
        if not self.reason:
            return True
        return self.reason.startswith((PREFIX, *PROLOG_REASONS)) and not self.reason.startswith(FABRIC_PREFIX)


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


def decide(problems: Sequence[HealthProblem], service: Service, good_rounds: int) -> Decision:
    """Return what to do after a round of checks."""
    if service.drained and not service.ours:
        return Decision(None)
    if problems:
        reason = (PREFIX + "; ".join(map(str, problems)))[:REASON_MAX_CHARS]
        return Decision(None if service.drained and reason == service.reason else "drain", reason, good_rounds=0)
    if not service.drained:
        return Decision(None)
    if good_rounds + 1 < GOOD_ROUNDS:
        return Decision(None, good_rounds=good_rounds + 1)
    return Decision("resume")
