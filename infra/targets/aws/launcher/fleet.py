"""The fleet: for each node group the ways to launch a machine, in the order in which they are tried."""

from __future__ import annotations

from typing import Literal

from cluster.inventory.model import InventoryModel

Purchase = Literal["on-demand", "spot", "reservation", "block"]


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

    def group(self, name: str) -> FleetGroup:
        """Return the group called `name`."""
        return next(group for group in self.groups if group.name == name)
