"""Rules about how machines are bought: what the type can be bought as, reservations, blocks, fallbacks, placement."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import groups, most

RESERVATION = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})")
RESERVATION_GROUP = re.compile(r"arn:aws[a-z-]*:resource-groups:([a-z0-9-]+):\d{12}:group/[\w.-]+(/\w+)?")
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html
BLOCK_NODES = 64


def sold(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        missing = [way for way in purchases(group) if way not in found.purchases]
        for way in missing:
            field = "kind" if way == group.capacity.kind else "fallback"
            message = f"{found.name} is not sold as '{way}'; allowed: {', '.join(sorted(found.purchases))}"
            yield error("not_sold", f"groups.{name}.capacity.{field}", message, "choose one of these, or another type")


def reservation_named(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        capacity, where = group.capacity, f"groups.{name}.capacity.reservation"
        if "block" in purchases(group) and capacity.reservation is None:
            message = "required with a capacity block, but missing; a block is used when given, never bought"
            yield error(
                "block_without_id", where, message, "add `reservation: cr-...` with the id of the block you bought"
            )
        elif "reservation" in purchases(group) and capacity.reservation is None:
            message = "missing: any open reservation of the account that fits is used, and on-demand where none does"
            yield warning("reservation_open", where, message, "add `reservation: cr-...` to use one and no other")
        elif capacity.reservation and not set(purchases(group)) & set(RESERVED):
            message = f"'{capacity.reservation}' has no effect: capacity.kind is '{capacity.kind}'"
            yield error(
                "reservation_unused", where, message, "write `kind: reservation` or `kind: block`, or remove it"
            )


def reservation_format(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    for name, group in spec.groups.items():
        named, where = group.capacity.reservation, f"groups.{name}.capacity.reservation"
        if named is None:
            continue
        arn = RESERVATION_GROUP.fullmatch(named)
        if not arn and not RESERVATION.fullmatch(named):
            message = (
                f"'{named}' is no reservation; allowed: cr- and 17 hexadecimal digits, or the ARN of a resource group"
            )
            yield error("reservation_format", where, message, "write for example `reservation: cr-0123456789abcdef0`")
        elif arn and section and arn[1] != section.region:
            message = f"the resource group is in region {arn[1]}; allowed: one in {section.region}"
            yield error("reservation_region", where, message, "name a resource group of the same region")
        elif arn and "block" in purchases(group):
            message = "a capacity block is named by its own id, not by a resource group"
            yield error("block_group", where, message, "write for example `reservation: cr-0123456789abcdef0`")


def reservation_shared(spec: ClusterSpec) -> Iterator[Issue]:
    owners: dict[str, str] = {}
    for name, group in spec.groups.items():
        named = group.capacity.reservation
        if named in owners:
            message = f"'{named}' is also the reservation of group '{owners[named]}': whoever comes first gets it"
            yield warning("reservation_shared", f"groups.{name}.capacity.reservation", message, "give each its own")
        elif named:
            owners[named] = name


def reservation_zones(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    for name, group in spec.groups.items():
        named, zones = group.capacity.reservation, group.capacity.zones or (section.zones if section else ())
        if named and named.startswith("cr-") and len(zones) > 1:
            message = f"a reservation is in one zone, but {', '.join(zones)} are tried"
            fix = "write `zones:` with the zone of the reservation"
            yield warning("reservation_zones", f"groups.{name}.capacity.zones", message, fix)


def fallback(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        kind, then, where = group.capacity.kind, group.capacity.fallback, f"groups.{name}.capacity.fallback"
        for index, way in enumerate(then):
            if way == kind or way in then[:index]:
                message = f"'{way}' is tried already; allowed: each way once"
                yield error("fallback_twice", f"{where}[{index}]", message, "remove it")
        if kind == "on-demand" and set(then) & set(RESERVED):
            message = (
                f"{', '.join(w for w in then if w in RESERVED)} after on-demand: paid capacity stays empty meanwhile"
            )
            yield error("fallback_order", where, message, "put the reservation first: `kind: reservation`")
        if {kind, *then} >= set(RESERVED):
            message = "a group has one reservation id: it is a reservation or a block, not both"
            yield error("fallback_both", where, message, "make two groups, one for each")


def placement(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        if group.capacity.placement != "cluster":
            continue
        where = f"groups.{name}.capacity.placement"
        if "block" in purchases(group):
            message = "'cluster' with a capacity block: a block brings its own placement, launches would fail"
            yield error("placement_block", where, message, "write `placement: auto`")
        elif "reservation" in purchases(group):
            message = "'cluster' with a reservation that lies outside the placement group: AWS finds no capacity in it"
            fix = "write `placement: auto`, which places only what is bought otherwise"
            yield error("placement_reservation", where, message, fix)
        elif not found.placement:
            message = f"{found.name} cannot be in a cluster placement group"
            yield error("placement_type", where, message, "write `placement: auto`, or choose another type")


def placement_zones(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    for name, group in spec.groups.items():
        zones = group.capacity.zones or (section.zones if section else ())
        if group.capacity.placement == "cluster" and len(zones) > 1 and group.fabric != "efa":
            message = f"machines close together are in one zone, but {', '.join(zones)} are tried"
            where = f"groups.{name}.capacity.placement"
            yield warning("placement_zones", where, message, "name one zone, or write `placement: none`")


def block_size(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        if group.capacity.kind == "block" and not group.capacity.fallback and most(group) > BLOCK_NODES:
            message = f"{most(group)} nodes, but a capacity block has {BLOCK_NODES} at most"
            field = "count" if group.count is not None else "max"
            yield error("block_size", f"groups.{name}.{field}", message, "make one group for each block")


def spot_static(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        if group.capacity.kind == "spot" and "on-demand" not in group.capacity.fallback and group.count:
            message = f"{group.count} nodes that always exist are bought as spot: AWS may take them at any time"
            fix = "write `fallback: [on-demand]`, or min and max instead of count"
            yield warning("spot_static", f"groups.{name}.capacity.kind", message, fix)
