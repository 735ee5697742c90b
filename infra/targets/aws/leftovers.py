"""What exists of a cluster on AWS beside the state file, by tag."""

from __future__ import annotations

from infra.providers.problem import Problem
from infra.targets.target import Leftover

_FIX = "look under Resource Groups for the tag muster.cluster"


def find(cluster: str) -> list[Leftover]:
    raise Problem("target", f"what is left of {cluster} on AWS cannot be counted yet", _FIX)


def remove(leftover: Leftover) -> None:
    raise Problem("target", f"{leftover.kind} {leftover.name} cannot be removed by its tag yet", _FIX)
