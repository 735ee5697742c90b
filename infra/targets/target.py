"""What every target can do: build a plan, say what an hour costs, tell what is left behind and remove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pulumi

from infra.plan.build_plan import BuildPlan


@dataclass(frozen=True)
class Context:
    """What a target needs beside the plan. Everything it builds depends on `guard`."""

    stack: str
    guard: pulumi.Resource
    ssh_public_key: pulumi.Input[str]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    inventory: pulumi.Output[str]
    """An Inventory as JSON, known once every machine answers on SSH."""
    addresses: pulumi.Output[dict[str, str]]


@dataclass(frozen=True)
class Leftover:
    """Something that exists and carries the cluster's label (or its name, where there are no labels)."""

    kind: str
    name: str
    created: str = ""
    stack: str = ""
    home: str = ""
    """Label of the MUSTER_HOME that made it; empty where it carries none."""


class Target(Protocol):
    def build(self, plan: BuildPlan, context: Context) -> Built: ...

    def usd_per_hour(self, plan: BuildPlan) -> float: ...

    def leftovers(self, cluster: str) -> list[Leftover]:
        """What this MUSTER_HOME made, or nobody is known to have made, in the order in which it can be removed."""
        ...

    def remove(self, leftover: Leftover) -> None:
        """What is gone already is fine."""
        ...
