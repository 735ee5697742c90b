"""Checks of reserved capacity: the reservation or block matches the group, is active, and has free machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from cluster.plural import format_count
from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.plan.network import AUTO, zones
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.validate.types import count_max_nodes

Reservation = Mapping[str, Any]

_MISSING = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
_PLATFORM = "Linux/UNIX"
_FUTURE_STATES = ("scheduled", "pending", "payment-pending", "assessing", "delayed")
_END_WARNING = timedelta(hours=24)
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-using.html
_BLOCK_ENDS_EARLIER = timedelta(minutes=30)


def check_reservations(subject: Subject) -> Iterator[Issue]:
    """Report reservations that are missing or do not match their group."""
    for name, group in subject.spec.groups.items():
        reference = group.capacity.reservation
        if reference is None or not set(purchases(group)) & set(RESERVED):
            continue
        where = f"groups.{name}.capacity.reservation"
        ids = [reference] if reference.startswith("cr-") else _list_members(subject, reference)
        candidates = _describe(subject, ids)
        if not candidates:
            message = (
                f"'{reference}' does not exist in {subject.region}, or account {subject.identity.account} may "
                "not use it"
            )
            yield error(
                "reservation_missing", where, message, "name one that `aws ec2 describe-capacity-reservations` lists"
            )
            continue
        in_use = sum(instance.reservation in ids for instance in subject.running)
        yield from judge(subject.spec, name, candidates, in_use=in_use, now=datetime.now(UTC))


def judge(
    spec: ClusterSpec, name: str, candidates: list[Reservation], *, in_use: int, now: datetime
) -> Iterator[Issue]:
    """Yield issues of the reservations of a group.

    If several are candidates, those that match count; issues of the others matter only if none matches.
    """
    group, where = spec.groups[name], f"groups.{name}.capacity.reservation"
    problems = {
        reservation["CapacityReservationId"]: list(_check_reservation(spec, group, where, reservation, now))
        for reservation in candidates
    }
    fit = [
        reservation
        for reservation in candidates
        if not any(i.level == "error" for i in problems[reservation["CapacityReservationId"]])
    ]
    for reservation in fit or candidates:
        yield from problems[reservation["CapacityReservationId"]]
    if fit:
        yield from _check_room(group, where, fit, in_use)


def _check_reservation(
    spec: ClusterSpec, group: NodeGroup, where: str, reservation: Reservation, now: datetime
) -> Iterator[Issue]:
    yield from _check_kind(group, where, reservation)
    yield from _check_state(group, where, reservation)
    yield from _check_end(where, reservation, now)
    yield from _check_match(spec, group, where, reservation)


def _check_kind(group: NodeGroup, where: str, reservation: Reservation) -> Iterator[Issue]:
    is_block = reservation.get("ReservationType") == "capacity-block"
    if is_block != ("block" in purchases(group)):
        description, kind = (
            ("a capacity block", "block") if is_block else ("a reservation, not a capacity block", "reservation")
        )
        yield error("reservation_kind", where, f"{_quote_id(reservation)} is {description}", f"write `kind: {kind}`")


def _check_state(group: NodeGroup, where: str, reservation: Reservation) -> Iterator[Issue]:
    state = reservation["State"]
    if state == "active":
        return
    if state in _FUTURE_STATES:
        begins = f", begins {_format_time(reservation['StartDate'])}" if reservation.get("StartDate") else ""
        make = error if _count_permanent_nodes(group) and len(purchases(group)) == 1 else warning
        message = f"{_quote_id(reservation)} is {state}{begins}: no node can use it before"
        yield make("reservation_not_yet", where, message, "run `make up` when it is active, or set min to 0 until then")
    else:
        message = f"{_quote_id(reservation)} is {state}; allowed: active"
        yield error("reservation_over", where, message, "name one that is active, or choose another kind of capacity")


def _check_end(where: str, reservation: Reservation, now: datetime) -> Iterator[Issue]:
    end = reservation.get("EndDate")
    if end is None or reservation["State"] != "active":
        return
    last = end - _BLOCK_ENDS_EARLIER if reservation.get("ReservationType") == "capacity-block" else end
    if last - now < _END_WARNING:
        message = (
            f"{_quote_id(reservation)} ends {_format_time(end)}; its machines are terminated from "
            f"{_format_time(last)} on"
        )
        yield warning("reservation_ends", where, message, "let jobs save before; run `make teardown` in time")


def _check_match(spec: ClusterSpec, group: NodeGroup, where: str, reservation: Reservation) -> Iterator[Issue]:
    if reservation["InstanceType"] != group.instance_type:
        message = f"{_quote_id(reservation)} is for {reservation['InstanceType']}; the group has {group.instance_type}"
        yield error(
            "reservation_type", where, message, f"write `instance_type: {reservation['InstanceType']}`, or name another"
        )
    allowed = group.capacity.zones or zones(spec)
    if allowed != (AUTO,) and reservation["AvailabilityZone"] not in allowed:
        message = (
            f"{_quote_id(reservation)} is in {reservation['AvailabilityZone']}; the group is in {', '.join(allowed)}"
        )
        yield error(
            "reservation_zone",
            where,
            message,
            f"write `zones: [{reservation['AvailabilityZone']}]` under aws and the group",
        )
    if allowed == (AUTO,) and not spec.network.vpc_id:
        message = (
            f"{_quote_id(reservation)} is in {reservation['AvailabilityZone']}; without `aws.zones` the "
            "cluster may be created in another zone"
        )
        yield error("reservation_zone", where, message, f"write `zones: [{reservation['AvailabilityZone']}]` under aws")
    platform = reservation.get("InstancePlatform", _PLATFORM)
    if platform != _PLATFORM:
        message = f"{_quote_id(reservation)} is for {platform}; the images are {_PLATFORM}"
        yield error("reservation_platform", where, message, f"use a reservation for {_PLATFORM}")
    if reservation.get("Tenancy", "default") != "default":
        message = f"{_quote_id(reservation)} is for tenancy '{reservation['Tenancy']}'; nodes have 'default'"
        yield error("reservation_tenancy", where, message, "use a reservation with default tenancy")
    if reservation.get("PlacementGroupArn"):
        group_name = reservation["PlacementGroupArn"].rpartition("/")[2]
        message = (
            f"{_quote_id(reservation)} is in placement group '{group_name}', but nodes with a reservation use none"
        )
        yield error("reservation_placement", where, message, "use a reservation outside placement groups")


def _check_room(group: NodeGroup, where: str, fit: list[Reservation], in_use: int) -> Iterator[Issue]:
    """Report too few free machines, only if all are active: a block reports none before it begins."""
    if any(reservation["State"] != "active" for reservation in fit):
        return
    free = sum(reservation["AvailableInstanceCount"] for reservation in fit)
    total = sum(reservation["TotalInstanceCount"] for reservation in fit)
    if free + in_use >= count_max_nodes(group):
        return
    ids = ", ".join(_quote_id(reservation) for reservation in fit)
    own_use = f", {in_use} used by this cluster" if in_use else ""
    message = (
        f"{ids}: {free} of {format_count(total, 'machine')} free{own_use}; the group has up to {count_max_nodes(group)}"
    )
    only_kind = len(purchases(group)) == 1
    make = error if only_kind and free + in_use < _count_permanent_nodes(group) else warning
    fix = (
        "use fewer nodes, or a larger reservation"
        if only_kind
        else f"the others are bought as {', '.join(group.capacity.fallback)}"
    )
    yield make("reservation_full", where, message, fix)


def _describe(subject: Subject, ids: list[str]) -> list[Reservation]:
    if not ids:
        return []
    try:
        answer = subject.client("ec2").describe_capacity_reservations(CapacityReservationIds=ids)
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return []
        raise
    return list(answer["CapacityReservations"])


def _list_members(subject: Subject, group_arn: str) -> list[str]:
    """Return the ids of the reservations in a resource group."""
    pages = subject.client("resource-groups").get_paginator("list_group_resources").paginate(Group=group_arn)
    arns = [item["Identifier"]["ResourceArn"] for page in pages for item in page.get("Resources", [])]
    return [arn.rpartition("/")[2] for arn in arns if ":capacity-reservation/" in arn]


def _count_permanent_nodes(group: NodeGroup) -> int:
    return group.count if group.count is not None else group.min or 0


def _quote_id(reservation: Reservation) -> str:
    return f"'{reservation['CapacityReservationId']}'"


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
