"""Storage: on machines that exist already, shared filesystems are mounted before anything is written to them."""

from __future__ import annotations

from bootstrap.action import Action
from bootstrap.changes import UNRECORDED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import nfs
from bootstrap.steps.step import Step
from cluster.inventory import Node


def plan_storage(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Serve and mount what the cluster's own nodes serve; refuse a machine whose owner has not mounted the rest.

    Without the refusal, files would be written to the machine's own disk, where no other node sees them.
    """
    served = {each.mount: each.node for each in desired.inventory.served}
    missing = [mount for mount in desired.inventory.mounts if mount not in served and mount not in facts.mounts]
    todo = [_refuse(mount) for mount in missing]
    if node.name in served.values():
        todo += nfs.plan_server(facts, node, desired.inventory)
    return [*todo, *nfs.plan_client(facts, node, desired.inventory)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip machines that are created with their filesystems."""
    return "" if node.adopted else "mounted since the machine was created"


def _refuse(mount: str) -> Action:
    script = f"echo 'nothing is mounted at {mount}' >&2; exit 1"
    fix = f"mount the shared filesystem at {mount} there, with a line in /etc/fstab so that it is back after a restart"
    return Action(f"use {mount}", script, fix=fix, changes=UNRECORDED)


def _list_packages(_node: Node) -> tuple[str, ...]:
    return (*nfs.PACKAGES["kernel"], *nfs.PACKAGES["ganesha"], *nfs.CLIENT_PACKAGES)


def _print_support(_node: Node, desired: Desired) -> str:
    return nfs.print_support() if desired.inventory.served else ""


STEP = Step(
    "storage",
    "shared filesystems of machines that exist already",
    plan_storage,
    skip=skip,
    units=tuple(nfs.UNITS.values()),
    packages=_list_packages,
    readings=_print_support,
)
