"""Capacity that somebody holds: whether the reservation or block fits the group, is there in time, and has room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.plan.network import AUTO, zones
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.validate.types import most

Reservation = Mapping[str, Any]

_MISSING = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
_PLATFORM = "Linux/UNIX"
_COMING = ("scheduled", "pending", "payment-pending", "assessing", "delayed")
_SOON = timedelta(hours=24)
# docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-using.html
_BLOCK_ENDS_EARLIER = timedelta(minutes=30)


def fitting(subject: Subject) -> Iterator[Issue]:
    for name, group in subject.spec.groups.items():
        named = group.capacity.reservation
        if named is None or not set(purchases(group)) & set(RESERVED):
            continue
        where = f"groups.{name}.capacity.reservation"
        ids = [named] if named.startswith("cr-") else _members(subject, named)
        found = _found(subject, ids)
        if not found:
            message = (
                f"'{named}' does not exist in {subject.region}, or account {subject.identity.account} may not use it"
            )
            yield error(
                "reservation_missing", where, message, "name one that `aws ec2 describe-capacity-reservations` lists"
            )
            continue
        held = sum(one.reservation in ids for one in subject.running)
        yield from judge(subject.spec, name, found, held=held, now=datetime.now(UTC))


def judge(spec: ClusterSpec, name: str, found: list[Reservation], *, held: int, now: datetime) -> Iterator[Issue]:
    """A group of reservations is as good as those in it that fit; what is wrong with the others is said only where
    none does."""
    group, where = spec.groups[name], f"groups.{name}.capacity.reservation"
    problems = {one["CapacityReservationId"]: list(_problems(spec, group, where, one, now)) for one in found}
    fit = [one for one in found if not any(i.level == "error" for i in problems[one["CapacityReservationId"]])]
    for one in fit or found:
        yield from problems[one["CapacityReservationId"]]
    if fit:
        yield from _room(group, where, fit, held)


def _problems(spec: ClusterSpec, group: NodeGroup, where: str, one: Reservation, now: datetime) -> Iterator[Issue]:
    yield from _kind(group, where, one)
    yield from _state(group, where, one)
    yield from _end(where, one, now)
    yield from _match(spec, group, where, one)


def _kind(group: NodeGroup, where: str, one: Reservation) -> Iterator[Issue]:
    block, wanted = one.get("ReservationType") == "capacity-block", "block" in purchases(group)
    if block != wanted:
        is_, kind = ("a capacity block", "block") if block else ("a reservation, no capacity block", "reservation")
        yield error("reservation_kind", where, f"{_id(one)} is {is_}", f"write `kind: {kind}`")


def _state(group: NodeGroup, where: str, one: Reservation) -> Iterator[Issue]:
    state = one["State"]
    if state == "active":
        return
    if state in _COMING:
        begins = f", begins {_at(one['StartDate'])}" if one.get("StartDate") else ""
        make = error if _always(group) and len(purchases(group)) == 1 else warning
        message = f"{_id(one)} is {state}{begins}: no node can use it before"
        yield make("reservation_not_yet", where, message, "run `make up` when it is active, or let min be 0 until then")
    else:
        message = f"{_id(one)} is {state}; allowed: active"
        yield error("reservation_over", where, message, "name one that is active, or buy in another way")


def _end(where: str, one: Reservation, now: datetime) -> Iterator[Issue]:
    end = one.get("EndDate")
    if end is None or one["State"] != "active":
        return
    last = end - _BLOCK_ENDS_EARLIER if one.get("ReservationType") == "capacity-block" else end
    if last - now < _SOON:
        message = f"{_id(one)} ends {_at(end)}; its machines go from {_at(last)} on"
        yield warning("reservation_ends", where, message, "let jobs save before; `make teardown` in time")


def _match(spec: ClusterSpec, group: NodeGroup, where: str, one: Reservation) -> Iterator[Issue]:
    if one["InstanceType"] != group.instance_type:
        message = f"{_id(one)} is for {one['InstanceType']}; the group has {group.instance_type}"
        yield error(
            "reservation_type", where, message, f"write `instance_type: {one['InstanceType']}`, or name another"
        )
    allowed = group.capacity.zones or zones(spec)
    if allowed != (AUTO,) and one["AvailabilityZone"] not in allowed:
        message = f"{_id(one)} is in {one['AvailabilityZone']}; the group is in {', '.join(allowed)}"
        yield error(
            "reservation_zone", where, message, f"write `zones: [{one['AvailabilityZone']}]` under aws and the group"
        )
    if allowed == (AUTO,) and not spec.network.vpc_id:
        message = (
            f"{_id(one)} is in {one['AvailabilityZone']}; without `aws.zones` the cluster may come to another zone"
        )
        yield error("reservation_zone", where, message, f"write `zones: [{one['AvailabilityZone']}]` under aws")
    platform = one.get("InstancePlatform", _PLATFORM)
    if platform != _PLATFORM:
        message = f"{_id(one)} is for {platform}; the images are {_PLATFORM}"
        yield error("reservation_platform", where, message, f"a reservation for {_PLATFORM}")
    if one.get("Tenancy", "default") != "default":
        message = f"{_id(one)} is for tenancy '{one['Tenancy']}'; nodes have 'default'"
        yield error("reservation_tenancy", where, message, "a reservation with default tenancy")
    if one.get("PlacementGroupArn"):
        group_name = one["PlacementGroupArn"].rpartition("/")[2]
        message = f"{_id(one)} lies in placement group '{group_name}', and nodes that use a reservation are in none"
        yield error("reservation_placement", where, message, "a reservation that was made outside a placement group")


def _room(group: NodeGroup, where: str, fit: list[Reservation], held: int) -> Iterator[Issue]:
    """Only of those that are active: before it begins, a block says that nothing is free."""
    if any(one["State"] != "active" for one in fit):
        return
    free = sum(one["AvailableInstanceCount"] for one in fit)
    total = sum(one["TotalInstanceCount"] for one in fit)
    if free + held >= most(group):
        return
    ids = ", ".join(_id(one) for one in fit)
    mine = f", and {held} are used by this cluster" if held else ""
    message = f"{free} of {total} machines of {ids} are free{mine}; the group has up to {most(group)}"
    alone = len(purchases(group)) == 1
    make = error if alone and free + held < _always(group) else warning
    then = (
        "fewer nodes, or a larger reservation"
        if alone
        else f"the rest is bought as {', '.join(group.capacity.fallback)}"
    )
    yield make("reservation_full", where, message, then)


def _found(subject: Subject, ids: list[str]) -> list[Reservation]:
    if not ids:
        return []
    try:
        answer = subject.client("ec2").describe_capacity_reservations(CapacityReservationIds=ids)
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return []
        raise
    return list(answer["CapacityReservations"])


def _members(subject: Subject, arn: str) -> list[str]:
    """Ids of the reservations in a resource group."""
    pages = subject.client("resource-groups").get_paginator("list_group_resources").paginate(Group=arn)
    arns = [item["Identifier"]["ResourceArn"] for page in pages for item in page.get("Resources", [])]
    return [one.rpartition("/")[2] for one in arns if ":capacity-reservation/" in one]


def _always(group: NodeGroup) -> int:
    return group.count if group.count is not None else group.min or 0


def _id(one: Reservation) -> str:
    return f"'{one['CapacityReservationId']}'"


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
