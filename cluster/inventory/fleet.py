"""What may be launched: for each group the ways to get a machine, in the order in which they are tried."""

from __future__ import annotations

from typing import Literal

from cluster.inventory.model import Part

Purchase = Literal["on-demand", "spot", "reservation", "block"]


class LaunchOption(Part):
    """One way to get a node: a launch template in one subnet, bought in one way."""

    purchase: Purchase
    zone: str
    subnet_id: str
    instance_type: str
    launch_template_id: str
    launch_template_version: str
    reservation: str | None = None
    placement_group: str | None = None


class FleetGroup(Part):
    name: str
    options: tuple[LaunchOption, ...]
    retry_s: int = 600


class Fleet(Part):
    """Everything the launching side needs to know; written once by the engine, read on the controller."""

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
