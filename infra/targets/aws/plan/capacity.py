"""The ways to get a machine of a group, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.catalog.instances import instance
from cluster.spec import NodeGroup, Purchase

RESERVED = ("reservation", "block")
"""Purchases that use up capacity which somebody holds already."""


@dataclass(frozen=True)
class Option:
    purchase: Purchase
    zone: str
    reservation: str | None
    placement: bool
    """Whether the machine goes into the group's placement group."""


def options(group: NodeGroup, zones: Sequence[str]) -> tuple[Option, ...]:
    """`zones` are those of the network; the group's own come first where it names any."""
    capacity = group.capacity
    return tuple(
        Option(
            purchase=purchase,
            zone=zone,
            reservation=capacity.reservation if purchase in RESERVED else None,
            placement=placed(group, purchase),
        )
        for purchase in purchases(group)
        for zone in capacity.zones or zones
    )


def purchases(group: NodeGroup) -> tuple[Purchase, ...]:
    return tuple(dict.fromkeys((group.capacity.kind, *group.capacity.fallback)))


def placed(group: NodeGroup, purchase: Purchase) -> bool:
    """A capacity block brings its own placement, and a reservation made outside a placement group has no capacity
    inside one: launches fail although machines are reserved (docs.aws.amazon.com/AWSEC2/latest/UserGuide/
    capacity-blocks-how.html, limitations-placement-groups.html)."""
    wanted = group.capacity.placement
    if purchase == "block" or wanted == "none":
        return False
    if wanted == "cluster":
        return True
    several = (group.count if group.count is not None else group.max or 0) > 1
    close = instance(group.instance_type or "").placement
    return purchase != "reservation" and group.fabric == "efa" and several and close
