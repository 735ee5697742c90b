"""Storage: on machines that exist already, the shared filesystems are mounted before anything is written to them."""

from __future__ import annotations

from bootstrap.action import Action
from bootstrap.changes import UNRECORDED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node


def plan_storage(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Return an action that fails for each filesystem that the machine's owner has not mounted.

    Without it, files would be written to the machine's own disk, where no other node sees them.
    """
    return [_refuse(mount) for mount in desired.inventory.mounts if mount not in facts.mounts]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip machines that are created with their filesystems."""
    return "" if node.adopted else "mounted since the machine was created"


def _refuse(mount: str) -> Action:
    script = f"echo 'nothing is mounted at {mount}' >&2; exit 1"
    fix = f"mount the shared filesystem at {mount} there, with a line in /etc/fstab so that it is back after a restart"
    return Action(f"use {mount}", script, fix=fix, changes=UNRECORDED)


STEP = Step("storage", "shared filesystems of machines that exist already", plan_storage, skip=skip)
