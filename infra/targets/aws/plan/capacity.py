"""Launch options of a node group (kind of purchase, type and place), in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.catalog.instances import instance
from cluster.spec import ClusterSpec, NodeGroup, Purchase
from infra.targets.aws.launcher.fleet import FleetGroup, LaunchOption
from infra.targets.aws.plan.interfaces import interfaces
from infra.targets.aws.plan.network import Place, places_of

RESERVED = ("reservation", "block")
"""Kinds of purchase that use capacity which is already reserved."""


@dataclass(frozen=True)
class Option:
    """A kind of purchase of an instance type in a zone."""

    purchase: Purchase
    instance_type: str
    zone: str
    reservation: str | None
    placement: bool
    """Whether the machine is launched into the group's placement group."""


@dataclass(frozen=True)
class PlannedLaunch:
    """A kind of purchase of an instance type in a place, before AWS has any of the resources for it."""

    purchase: Purchase
    instance_type: str
    place: Place
    reservation: str | None
    placement: bool
    """Whether the machine is launched into the group's placement group."""


def options(group: NodeGroup, zones: Sequence[str]) -> tuple[Option, ...]:
    """Return the options of a group; `zones` are those of the network, used if the group names none."""
    capacity = group.capacity
    return tuple(
        Option(
            purchase=purchase,
            instance_type=name,
            zone=zone,
            reservation=capacity.reservation if purchase in RESERVED else None,
            placement=uses_placement(group, purchase, name),
        )
        for purchase in purchases(group)
        for name in type_names(group, purchase)
        for zone in capacity.zones or zones
    )


def purchases(group: NodeGroup) -> tuple[Purchase, ...]:
    """Return the kinds of purchase of a group, in the order in which they are tried."""
    return tuple(dict.fromkeys((group.capacity.kind, *group.capacity.fallback)))


def type_names(group: NodeGroup, purchase: Purchase) -> tuple[str, ...]:
    """Return the instance types of a kind of purchase, in the order in which they are tried.

    Reserved capacity is of one type, the group's own.
    """
    fallbacks = () if purchase in RESERVED else group.capacity.fallback_types
    return (group.instance_type or "", *fallbacks)


def uses_placement(group: NodeGroup, purchase: Purchase, instance_type: str) -> bool:
    """Return whether a machine is launched into the group's placement group.

    A capacity block has its own placement, and a reservation that was created outside a placement group has no capacity
    inside one: launches fail even if machines are reserved (docs.aws.amazon.com/AWSEC2/latest/UserGuide/
    capacity-blocks-how.html, limitations-placement-groups.html).
    """
    placement = group.capacity.placement
    if purchase == "block" or placement == "none":
        return False
    if placement == "cluster":
        return True
    several = (group.count if group.count is not None else group.max or 0) > 1
    supported = instance(instance_type).placement
    return purchase != "reservation" and group.fabric == "efa" and several and supported


def planned_launches(spec: ClusterSpec, group: NodeGroup) -> tuple[PlannedLaunch, ...]:
    """Return every kind of purchase of every type in every place of a group, in the order in which they are tried."""
    places = {place.label: place for place in places_of(spec, group)}
    any_zone = group.model_copy(update={"capacity": group.capacity.model_copy(update={"zones": ()})})
    return tuple(
        PlannedLaunch(option.purchase, option.instance_type, places[option.zone], option.reservation, option.placement)
        for option in options(any_zone, tuple(places))
    )


def fleet_group(
    name: str,
    group: NodeGroup,
    launches: Sequence[PlannedLaunch],
    resources: Sequence[Mapping[str, Any]],
    security_group: str,
) -> FleetGroup:
    """Return the Fleet's entry of a group.

    `resources` has, for each planned launch, the fields that only AWS knows: zone, subnet, template, placement group.
    """
    zones = group.capacity.zones
    launch_options = [
        LaunchOption(
            purchase=launch.purchase, instance_type=launch.instance_type, reservation=launch.reservation, **fields
        )
        for launch, fields in zip(launches, resources, strict=True)
        if not zones or fields["zone"] in zones
    ]
    if not launch_options:
        raise ValueError(
            f"groups.{name}.capacity.zones: no subnet is in {', '.join(zones)}; allowed: the zones of the subnets, "
            f"{', '.join(sorted({str(fields['zone']) for fields in resources}))}. Fix: write one of these"
        )
    if zones:
        order = purchases(group)
        # The sort is stable: places within a zone keep their order.
        launch_options.sort(
            key=lambda option: (
                order.index(option.purchase),
                type_names(group, option.purchase).index(option.instance_type),
                zones.index(option.zone),
            )
        )
    instance_type = instance(group.instance_type or "")
    return FleetGroup(
        name=name,
        options=tuple(launch_options),
        interfaces=interfaces(instance_type, group.fabric, ip_bandwidth=group.ip_bandwidth),
        security_groups=(security_group,),
        retry_s=group.capacity.retry_s,
    )
