"""A step: one idempotent part of bootstrap. It looks at facts and says what to do; it touches nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from cluster.inventory import Node, Role

ALL: tuple[Role, ...] = ("controller", "login", "compute")


def never(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True)
class Step:
    name: str
    description: str
    actions: Callable[[Facts, Node, Desired], list[Action]]
    roles: tuple[Role, ...] = ALL
    skip: Callable[[Facts, Node, Desired], str] = never
    """Why this step does not apply to this node, or nothing."""
