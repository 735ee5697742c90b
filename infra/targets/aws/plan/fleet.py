"""The Fleet's entry of a group: every way to get a node of it, with the ids of what was made for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.spec import ClusterSpec, NodeGroup, Purchase
from infra.targets.aws.launcher.fleet import FleetGroup, LaunchOption
from infra.targets.aws.plan import capacity
from infra.targets.aws.plan.network import Place, places_of


@dataclass(frozen=True)
class Way:
    """One option in one place, before anything of it exists."""

    purchase: Purchase
    place: Place
    reservation: str | None
    placed: bool


def ways(spec: ClusterSpec, group: NodeGroup) -> tuple[Way, ...]:
    """In the order in which they are tried."""
    places = {place.label: place for place in places_of(spec, group)}
    anywhere = group.model_copy(update={"capacity": group.capacity.model_copy(update={"zones": ()})})
    return tuple(
        Way(one.purchase, places[one.zone], one.reservation, one.placement)
        for one in capacity.options(anywhere, tuple(places))
    )


def fleet_group(name: str, group: NodeGroup, found: Sequence[Way], made: Sequence[Mapping[str, Any]]) -> FleetGroup:
    """`made` has, for each way, the fields that only AWS knows: zone, subnet, template, placement group."""
    wanted = group.capacity.zones
    options = [
        LaunchOption(
            purchase=way.purchase, instance_type=group.instance_type or "", reservation=way.reservation, **known
        )
        for way, known in zip(found, made, strict=True)
        if not wanted or known["zone"] in wanted
    ]
    if not options:
        raise ValueError(
            f"groups.{name}.capacity.zones: none of the subnets lies in {', '.join(wanted)}; "
            f"they lie in {', '.join(sorted({str(known['zone']) for known in made}))}. Fix: name one of these"
        )
    order = capacity.purchases(group)
    # Stable: within a zone the order of the places stays.
    options.sort(key=lambda one: (order.index(one.purchase), wanted.index(one.zone) if wanted else 0))
    return FleetGroup(name=name, options=tuple(options), retry_s=group.capacity.retry_s)
