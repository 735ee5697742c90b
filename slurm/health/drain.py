"""What becomes of a node after its checks: taken away with our reason, given back after some good rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm.health.check import Problem

PREFIX = "health: "
# Of the fabric proof: what a node's own checks see says nothing of it, and good rounds of theirs do not give it back.
FABRIC = f"{PREFIX}fabric: "
# A fault that comes and goes must not give the node back in every pause.
GOOD_ROUNDS = 3
# Slurm shows no more of a reason in its tables.
LONGEST = 200


@dataclass(frozen=True)
class Standing:
    """How the node stands with Slurm."""

    drained: bool
    reason: str = ""

    @property
    def ours(self) -> bool:
        return self.reason.startswith(PREFIX) and not self.reason.startswith(FABRIC)


@dataclass(frozen=True)
class Decision:
    state: str | None
    """What scontrol is told; None: leave it."""
    reason: str = ""
    good_rounds: int = 0


def decide(problems: Sequence[Problem], standing: Standing, good_rounds: int) -> Decision:
    if problems:
        reason = (PREFIX + "; ".join(map(str, problems)))[:LONGEST]
        # Somebody else's reason stays: whoever gave it wants to find it there.
        told = reason == standing.reason if standing.drained and standing.ours else standing.drained
        return Decision(None if told else "drain", reason)
    if not (standing.drained and standing.ours):
        return Decision(None)
    if good_rounds + 1 < GOOD_ROUNDS:
        return Decision(None, good_rounds=good_rounds + 1)
    return Decision("resume")
