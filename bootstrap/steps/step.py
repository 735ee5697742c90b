"""The Step: one idempotent part of bootstrap. It compares facts with the desired state and returns actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from cluster.inventory import Node, Role

ALL_ROLES: tuple[Role, ...] = ("controller", "login", "compute")


def _never_skip(facts: Facts, node: Node, desired: Desired) -> str:
    return ""


def _no_packages(node: Node) -> tuple[str, ...]:
    return ()


def _no_readings(node: Node, desired: Desired) -> str:
    return ""


@dataclass(frozen=True)
class Step:
    """One part of bootstrap, with the facts that it reads. Its functions are pure: they run nothing."""

    name: str
    description: str
    actions: Callable[[Facts, Node, Desired], list[Action]]
    """Returns the actions that a node needs; none if it is already in the desired state."""
    roles: tuple[Role, ...] = ALL_ROLES
    skip: Callable[[Facts, Node, Desired], str] = _never_skip
    """Returns why the step does not apply to a node, or an empty string if it does."""
    units: tuple[str, ...] = ()
    """Systemd units whose state the step reads from the facts."""
    packages: Callable[[Node], tuple[str, ...]] = _no_packages
    """Returns the distribution packages (names or glob patterns) whose versions the step reads from the facts."""
    readings: Callable[[Node, Desired], str] = _no_readings
    """Returns shell text that prints further facts that the step reads, such as versions of software and RDMA ports."""
    bake: Callable[[Facts, ImageContents], list[Action]] | None = None
    """Returns the actions that install what the step needs in an image of machines; None if it installs nothing.

    They have no access to a cluster's inventory and secrets, so nothing of them can get into an image.
    """
