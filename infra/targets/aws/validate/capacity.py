"""Rules about how machines are bought: kinds of capacity, reservations, blocks, fallbacks, placement."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import count_max_nodes, list_typed_groups

RESERVATION = re.compile(r"cr-([0-9a-f]{8}|[0-9a-f]{17})")
RESERVATION_GROUP = re.compile(r"arn:aws[a-z-]*:resource-groups:([a-z0-9-]+):\d{12}:group/[\w.-]+(/\w+)?")
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html
MAX_BLOCK_NODES = 64


def check_purchase_kinds(spec: ClusterSpec) -> Iterator[Issue]:
    """Report kinds of capacity that the type is not sold as."""
    for name, (group, machine) in list_typed_groups(spec).items():
        missing = [kind for kind in purchases(group) if kind not in machine.purchases]
        for kind in missing:
            field = "kind" if kind == group.capacity.kind else "fallback"
            message = f"{machine.name} is not sold as '{kind}'; allowed: {', '.join(sorted(machine.purchases))}"
            yield error("not_sold", f"groups.{name}.capacity.{field}", message, "choose one of these, or another type")


def check_reservation_present(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a block without its id, and a reservation id that is missing or unused."""
    for name, group in spec.groups.items():
        capacity, where = group.capacity, f"groups.{name}.capacity.reservation"
        if "block" in purchases(group) and capacity.reservation is None:
            message = "required with a capacity block, but missing; a block is used when given, never bought"
            yield error(
                "block_without_id", where, message, "add `reservation: cr-...` with the id of the block you bought"
            )
        elif "reservation" in purchases(group) and capacity.reservation is None:
            message = "missing: any matching open reservation of the account is used, and on-demand if there is none"
            yield warning("reservation_open", where, message, "add `reservation: cr-...` to use only that one")
        elif capacity.reservation and not set(purchases(group)) & set(RESERVED):
            message = f"'{capacity.reservation}' has no effect: capacity.kind is '{capacity.kind}'"
            yield error(
                "reservation_unused", where, message, "write `kind: reservation` or `kind: block`, or remove it"
            )


def check_reservation_format(spec: ClusterSpec) -> Iterator[Issue]:
    """Report malformed reservation ids, and resource groups that cannot be used."""
    section = aws_section(spec)
    for name, group in spec.groups.items():
        reservation, where = group.capacity.reservation, f"groups.{name}.capacity.reservation"
        if reservation is None:
            continue
        arn = RESERVATION_GROUP.fullmatch(reservation)
        if not arn and not RESERVATION.fullmatch(reservation):
            message = (
                f"'{reservation}' is not a reservation; allowed: cr- and 17 hexadecimal digits, or the ARN of "
                "a resource group"
            )
            yield error("reservation_format", where, message, "write for example `reservation: cr-0123456789abcdef0`")
        elif arn and section and arn[1] != section.region:
            message = f"the resource group is in region {arn[1]}; allowed: one in {section.region}"
            yield error("reservation_region", where, message, "name a resource group of the same region")
        elif arn and "block" in purchases(group):
            message = "a capacity block is named by its own id, not by a resource group"
            yield error("block_group", where, message, "write for example `reservation: cr-0123456789abcdef0`")


def check_shared_reservation(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about a reservation that several groups name."""
    owners: dict[str, str] = {}
    for name, group in spec.groups.items():
        reservation = group.capacity.reservation
        if reservation in owners:
            message = (
                f"'{reservation}' is also the reservation of group '{owners[reservation]}': the first group "
                "to launch gets it"
            )
            yield warning(
                "reservation_shared",
                f"groups.{name}.capacity.reservation",
                message,
                "name another reservation for one of them",
            )
        elif reservation:
            owners[reservation] = name


def check_reservation_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about zones in which the reservation has no capacity."""
    section = aws_section(spec)
    for name, group in spec.groups.items():
        reservation, zones = group.capacity.reservation, group.capacity.zones or (section.zones if section else ())
        if reservation and reservation.startswith("cr-") and len(zones) > 1:
            message = f"a reservation is in one zone, but {', '.join(zones)} are tried"
            fix = "write `zones:` with the zone of the reservation"
            yield warning("reservation_zones", f"groups.{name}.capacity.zones", message, fix)


def check_fallback(spec: ClusterSpec) -> Iterator[Issue]:
    """Report fallbacks that repeat a kind or come in an order that wastes paid capacity."""
    for name, group in spec.groups.items():
        kind, fallbacks, where = group.capacity.kind, group.capacity.fallback, f"groups.{name}.capacity.fallback"
        for index, fallback in enumerate(fallbacks):
            if fallback == kind or fallback in fallbacks[:index]:
                message = f"'{fallback}' is listed already; allowed: each kind once"
                yield error("fallback_twice", f"{where}[{index}]", message, "remove it")
        if kind == "on-demand" and set(fallbacks) & set(RESERVED):
            message = f"{', '.join(f for f in fallbacks if f in RESERVED)} after on-demand: paid capacity stays unused"
            yield error("fallback_order", where, message, "put the reservation first: `kind: reservation`")
        if {kind, *fallbacks} >= set(RESERVED):
            message = "a group has one reservation id, either of a reservation or of a block"
            yield error("fallback_both", where, message, "make two groups, one for each")


def check_placement(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a cluster placement group that the capacity or the type does not allow."""
    for name, (group, machine) in list_typed_groups(spec).items():
        if group.capacity.placement != "cluster":
            continue
        where = f"groups.{name}.capacity.placement"
        if "block" in purchases(group):
            message = "'cluster' with a capacity block, which has its own placement: launches would fail"
            yield error("placement_block", where, message, "write `placement: auto`")
        elif "reservation" in purchases(group):
            message = "'cluster' with a reservation outside the placement group: launches would find no capacity"
            fix = "write `placement: auto`, which uses no placement group for reserved capacity"
            yield error("placement_reservation", where, message, fix)
        elif not machine.placement:
            message = f"{machine.name} cannot be in a cluster placement group"
            yield error("placement_type", where, message, "write `placement: auto`, or choose another type")


def check_placement_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about a cluster placement group over several zones."""
    section = aws_section(spec)
    for name, group in spec.groups.items():
        zones = group.capacity.zones or (section.zones if section else ())
        if group.capacity.placement == "cluster" and len(zones) > 1 and group.fabric != "efa":
            message = f"a placement group is in one zone, but {', '.join(zones)} are tried"
            where = f"groups.{name}.capacity.placement"
            yield warning("placement_zones", where, message, "name one zone, or write `placement: none`")


def check_block_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Report groups that are larger than a capacity block can be."""
    for name, group in spec.groups.items():
        if group.capacity.kind == "block" and not group.capacity.fallback and count_max_nodes(group) > MAX_BLOCK_NODES:
            message = f"{count_max_nodes(group)} nodes, but a capacity block has {MAX_BLOCK_NODES} at most"
            field = "count" if group.count is not None else "max"
            yield error("block_size", f"groups.{name}.{field}", message, "make one group for each block")


def check_ultraserver_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Report groups that are larger than an UltraServer: a group is one block of Slurm's topology."""
    for name, (group, machine) in list_typed_groups(spec).items():
        if machine.ultraserver and count_max_nodes(group) > machine.ultraserver:
            message = (
                f"{count_max_nodes(group)} nodes, but an UltraServer of {machine.name} has {machine.ultraserver} at "
                f"most; allowed: 1 to {machine.ultraserver}"
            )
            field = "count" if group.count is not None else "max"
            fix = "make one group for each UltraServer, and a partition of all of them under `slurm.partitions`"
            yield error("ultraserver_size", f"groups.{name}.{field}", message, fix)


def check_permanent_spot(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about permanent nodes that are bought as spot without a fallback."""
    for name, group in spec.groups.items():
        if group.capacity.kind == "spot" and "on-demand" not in group.capacity.fallback and group.count:
            message = (
                f"{format_count(group.count, 'static node')} bought as spot: AWS can reclaim spot instances at any time"
            )
            fix = "write `fallback: [on-demand]`, or min and max instead of count"
            yield warning("spot_static", f"groups.{name}.capacity.kind", message, fix)
