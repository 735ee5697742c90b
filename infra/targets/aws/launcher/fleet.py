"""The fleet: for each node group the ways to launch a machine, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.inventory.model import InventoryModel

Purchase = Literal["on-demand", "spot", "reservation", "block"]
InterfaceKind = Literal["interface", "efa", "efa-only"]


@dataclass(frozen=True)
class Interface:
    """A network interface of a machine."""

    card: int
    device: int
    kind: InterfaceKind

    @property
    def has_address(self) -> bool:
        return self.kind != "efa-only"


class LaunchOption(InventoryModel):
    """One way to get a node: a launch template in one subnet, bought in one way."""

    purchase: Purchase
    zone: str
    subnet_id: str
    instance_type: str
    launch_template_id: str
    launch_template_version: str
    reservation: str | None = None
    placement_group: str | None = None

    @property
    def key(self) -> str:
        """Return the key of this option's capacity, which subnets of the same zone share."""
        return " ".join([self.instance_type, self.purchase, self.zone, self.reservation or ""]).strip()


class FleetGroup(InventoryModel):
    """The launch options of one node group."""

    name: str
    options: tuple[LaunchOption, ...]
    interfaces: tuple[Interface, ...] = ()
    """Interfaces of each machine, the primary one first; empty in fleets that older versions wrote.

    They are not in the launch template: a launch has to name their subnet, and AWS does not document how it merges the
    interfaces of a template with those of a launch.
    """
    security_groups: tuple[str, ...] = ()
    """Security groups of every interface."""
    retry_s: int = 600
    """Seconds for which a shortage is retried before it is reported to Slurm."""


class Fleet(InventoryModel):
    """The data that launches need; the engine writes it, the controller reads it."""

    cluster: str
    stack: str
    region: str
    hosted_zone_id: str
    """Private Route 53 zone in which every node has a name."""
    domain: str
    bundle: str
    """Digest of the bundle that new nodes fetch."""
    tags: dict[str, str]
    groups: tuple[FleetGroup, ...]
    budget_name: str | None = None
    bucket: str = ""
    """Bucket with the host keys; empty in fleets that older versions wrote, whose nodes share a key."""
    machine_arns: str = ""
    """What the ARN of every machine begins with; its id follows."""

    def group(self, name: str) -> FleetGroup:
        """Return the group called `name`."""
        return next(group for group in self.groups if group.name == name)
