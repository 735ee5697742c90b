"""Reservations and capacity blocks: each way in which one does not fit, in exact words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import reservations
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import codes, words
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

ID = "cr-0123456789abcdef0"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AT = "groups.gpu.capacity.reservation"
AWS = {"region": "us-east-1", "zones": ["us-east-1a"]}
ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
POOL = "arn:aws:resource-groups:us-east-1:123456789012:group/pool"


def held(kind: str = "reservation", aws: dict[str, Any] | None = None, **fields: Any) -> ClusterSpec:
    capacity = {"kind": kind, "reservation": ID, **fields.pop("capacity", {})}
    return spec(aws=aws or AWS, groups=group(fabric="efa", capacity=capacity, **fields))


def reservation(**changes: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": ID,
        "InstanceType": "p5.48xlarge",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": "us-east-1a",
        "Tenancy": "default",
        "TotalInstanceCount": 2,
        "AvailableInstanceCount": 2,
        "State": "active",
        "ReservationType": "default",
        **changes,
    }


def judged(described: ClusterSpec, *found: dict[str, Any], held: int = 0) -> list[str]:
    return words(reservations.judge(described, "gpu", list(found), in_use=held, now=NOW))


def test_one_that_fits_is_not_mentioned() -> None:
    assert judged(held(), reservation()) == []
    block = reservation(ReservationType="capacity-block", EndDate=NOW + timedelta(days=7))
    assert judged(held("block"), block) == []


@pytest.mark.parametrize(
    ("described", "changes", "said"),
    [
        (
            held("block"),
            {},
            f"error reservation_kind {AT}: '{ID}' is a reservation, not a capacity block; fix: write "
            "`kind: reservation`",
        ),
        (
            held(),
            {"ReservationType": "capacity-block"},
            f"error reservation_kind {AT}: '{ID}' is a capacity block; fix: write `kind: block`",
        ),
        (
            held(),
            {"State": "expired"},
            f"error reservation_over {AT}: '{ID}' is expired; allowed: active; "
            "fix: name one that is active, or choose another kind of capacity",
        ),
        (
            held(),
            {"State": "scheduled", "StartDate": NOW + timedelta(days=1)},
            f"error reservation_not_yet {AT}: '{ID}' is scheduled, begins 2026-11-21 12:00 UTC: no node can use it "
            "before; fix: run `make up` when it is active, or set min to 0 until then",
        ),
        (
            held(count=None, min=0, max=2),
            {"State": "scheduled", "StartDate": NOW + timedelta(days=1)},
            f"warning reservation_not_yet {AT}: '{ID}' is scheduled, begins 2026-11-21 12:00 UTC: no node can use it "
            "before; fix: run `make up` when it is active, or set min to 0 until then",
        ),
        (
            held(),
            {"EndDate": NOW + timedelta(hours=23)},
            f"warning reservation_ends {AT}: '{ID}' ends 2026-11-21 11:00 UTC; its machines are "
            "terminated from 2026-11-21 11:00 "
            "UTC on; fix: let jobs save before; run `make teardown` in time",
        ),
        (
            held("block"),
            {"ReservationType": "capacity-block", "EndDate": NOW + timedelta(hours=24)},
            f"warning reservation_ends {AT}: '{ID}' ends 2026-11-21 12:00 UTC; its machines are "
            "terminated from 2026-11-21 11:30 "
            "UTC on; fix: let jobs save before; run `make teardown` in time",
        ),
        (
            held(),
            {"InstanceType": "p5e.48xlarge"},
            f"error reservation_type {AT}: '{ID}' is for p5e.48xlarge; the group has p5.48xlarge; "
            "fix: write `instance_type: p5e.48xlarge`, or name another",
        ),
        (
            held(),
            {"AvailabilityZone": "us-east-1b"},
            f"error reservation_zone {AT}: '{ID}' is in us-east-1b; the group is in us-east-1a; "
            "fix: write `zones: [us-east-1b]` under aws and the group",
        ),
        (
            held(aws={"region": "us-east-1"}),
            {},
            f"error reservation_zone {AT}: '{ID}' is in us-east-1a; without `aws.zones` the cluster may be created "
            "in another zone; fix: write `zones: [us-east-1a]` under aws",
        ),
        (
            held(),
            {"InstancePlatform": "Windows"},
            f"error reservation_platform {AT}: '{ID}' is for Windows; the images are Linux/UNIX; "
            "fix: use a reservation for Linux/UNIX",
        ),
        (
            held(),
            {"Tenancy": "dedicated"},
            f"error reservation_tenancy {AT}: '{ID}' is for tenancy 'dedicated'; nodes have 'default'; "
            "fix: use a reservation with default tenancy",
        ),
        (
            held(),
            {"PlacementGroupArn": "arn:aws:ec2:us-east-1:123456789012:placement-group/close"},
            f"error reservation_placement {AT}: '{ID}' is in placement group 'close', but nodes with a reservation "
            "use none; fix: use a reservation outside placement groups",
        ),
        (
            held(),
            {"AvailableInstanceCount": 1},
            f"error reservation_full {AT}: 1 of 2 machines of '{ID}' are free; the group has up to 2; "
            "fix: use fewer nodes, or a larger reservation",
        ),
        (
            held(capacity={"fallback": ["on-demand"]}),
            {"AvailableInstanceCount": 1},
            f"warning reservation_full {AT}: 1 of 2 machines of '{ID}' are free; the group has up to 2; "
            "fix: the others are bought as on-demand",
        ),
        (
            held(count=None, min=1, max=4),
            {},
            f"warning reservation_full {AT}: 2 of 2 machines of '{ID}' are free; the group has up to 4; "
            "fix: use fewer nodes, or a larger reservation",
        ),
    ],
    ids=lambda value: value.split(" ")[1] if isinstance(value, str) else "",
)
def test_one_that_does_not_fit(described: ClusterSpec, changes: dict[str, Any], said: str) -> None:
    assert judged(described, reservation(**changes)) == [said]


def test_in_an_existing_vpc_named_zones_count_too() -> None:
    there = {"vpc_id": "vpc-0", "subnet_ids": ["subnet-0"]}
    capacity = {"kind": "reservation", "reservation": ID}
    named = spec(aws=AWS, network=there, groups=group(fabric="efa", capacity=capacity))
    assert [line.split(" ")[1] for line in judged(named, reservation(AvailabilityZone="us-east-1b"))] == [
        "reservation_zone"
    ]
    unnamed = spec(network=there, groups=group(fabric="efa", capacity=capacity))
    assert judged(unnamed, reservation(AvailabilityZone="us-east-1b")) == []


def test_machines_of_this_cluster_are_not_needed_again() -> None:
    taken = reservation(AvailableInstanceCount=0)
    assert judged(held(), taken, held=2) == []
    (said,) = judged(held(count=3), taken, held=2)
    assert "0 of 2 machines of" in said
    assert "are free, and 2 are used by this cluster; the group has up to 3" in said


def test_of_a_pool_those_that_fit_count() -> None:
    other = reservation(CapacityReservationId="cr-1", InstanceType="p4d.24xlarge")
    assert judged(held(), reservation(), other) == []
    first = reservation(CapacityReservationId="cr-2", TotalInstanceCount=1, AvailableInstanceCount=1)
    (said,) = judged(held(count=3), first, reservation(AvailableInstanceCount=1), other)
    assert f"2 of 3 machines of 'cr-2', '{ID}' are free" in said


def asked(answered: Answered, described: ClusterSpec, running: tuple[RunningInstance, ...] = ()) -> Subject:
    return Subject(described, answered.account, ME, running)


def made(aws: Moto, **changes: Any) -> str:
    wanted = {"InstanceType": "p5.48xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    made = aws.client("ec2").create_capacity_reservation(**{**wanted, "InstanceCount": 2, **changes})
    return str(made["CapacityReservation"]["CapacityReservationId"])


def test_one_that_exists_is_found_and_judged(answered: Answered, aws: Moto) -> None:
    good, small = made(aws), made(aws, InstanceCount=1)
    assert words(reservations.check_reservations(asked(answered, held(capacity={"reservation": good})))) == []
    found = reservations.check_reservations(asked(answered, held(capacity={"reservation": small})))
    assert codes(found) == [("error", "reservation_full")]
    mine = (RunningInstance("p5.48xlarge", False, "", 1, small),)
    assert words(reservations.check_reservations(asked(answered, held(capacity={"reservation": small}), mine))) == []


def test_one_that_does_not_exist(answered: Answered) -> None:
    assert words(reservations.check_reservations(asked(answered, held()))) == [
        f"error reservation_missing {AT}: '{ID}' does not exist in us-east-1, or account 123456789012 may not use it; "
        "fix: name one that `aws ec2 describe-capacity-reservations` lists"
    ]


def test_a_group_of_reservations_is_opened(answered: Answered, aws: Moto) -> None:
    inside = made(aws)
    arns = [f"arn:aws:ec2:us-east-1:123456789012:capacity-reservation/{inside}", "arn:aws:ec2:us-east-1:1:instance/i-0"]
    members = [{"Identifier": {"ResourceArn": arn, "ResourceType": "x"}} for arn in arns]
    answered.answer("resource-groups", "ListGroupResources", {"Resources": members})
    pool = held(capacity={"reservation": POOL})
    assert words(reservations.check_reservations(asked(answered, pool))) == []


def test_an_empty_group_of_reservations(answered: Answered) -> None:
    answered.answer("resource-groups", "ListGroupResources", {"Resources": []})
    pool = held(capacity={"reservation": POOL})
    assert codes(reservations.check_reservations(asked(answered, pool))) == [("error", "reservation_missing")]


def test_a_group_without_a_reservation_asks_nothing(answered: Answered, aws: Moto) -> None:
    assert words(reservations.check_reservations(asked(answered, spec()))) == []
    assert aws.of("DescribeCapacityReservations") == []
