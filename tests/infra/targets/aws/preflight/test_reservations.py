"""Pre-flight of reservations and capacity blocks: the exact message for each reason why one does not fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import reservations
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues, issue_codes
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

ID = "cr-0123456789abcdef0"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AT = "groups.gpu.capacity.reservation"
AWS = {"region": "us-east-1", "zones": ["us-east-1a"]}
ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
POOL = "arn:aws:resource-groups:us-east-1:123456789012:group/pool"


def reserved_spec(kind: str = "reservation", aws: dict[str, Any] | None = None, **fields: Any) -> ClusterSpec:
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


def judge(described: ClusterSpec, *candidates: dict[str, Any], in_use: int = 0) -> list[str]:
    return format_issues(reservations.judge(described, "gpu", list(candidates), in_use=in_use, now=NOW))


def test_a_fitting_reservation_has_no_issues() -> None:
    assert judge(reserved_spec(), reservation()) == []
    block = reservation(ReservationType="capacity-block", EndDate=NOW + timedelta(days=7))
    assert judge(reserved_spec("block"), block) == []


@pytest.mark.parametrize(
    ("described", "changes", "message"),
    [
        (
            reserved_spec("block"),
            {},
            f"error reservation_kind {AT}: '{ID}' is a reservation, not a capacity block; fix: write "
            "`kind: reservation`",
        ),
        (
            reserved_spec(),
            {"ReservationType": "capacity-block"},
            f"error reservation_kind {AT}: '{ID}' is a capacity block; fix: write `kind: block`",
        ),
        (
            reserved_spec(),
            {"State": "expired"},
            f"error reservation_over {AT}: '{ID}' is expired; allowed: active; "
            "fix: name one that is active, or choose another kind of capacity",
        ),
        (
            reserved_spec(),
            {"State": "scheduled", "StartDate": NOW + timedelta(days=1)},
            f"error reservation_not_yet {AT}: '{ID}' is scheduled, begins 2026-11-21 12:00 UTC: no node can use it "
            "before; fix: run `make up` when it is active, or set min to 0 until then",
        ),
        (
            reserved_spec(count=None, min=0, max=2),
            {"State": "scheduled", "StartDate": NOW + timedelta(days=1)},
            f"warning reservation_not_yet {AT}: '{ID}' is scheduled, begins 2026-11-21 12:00 UTC: no node can use it "
            "before; fix: run `make up` when it is active, or set min to 0 until then",
        ),
        (
            reserved_spec(),
            {"EndDate": NOW + timedelta(hours=23)},
            f"warning reservation_ends {AT}: '{ID}' ends 2026-11-21 11:00 UTC; its machines are "
            "terminated from 2026-11-21 11:00 "
            "UTC on; fix: let jobs save before; run `make teardown` in time",
        ),
        (
            reserved_spec("block"),
            {"ReservationType": "capacity-block", "EndDate": NOW + timedelta(hours=24)},
            f"warning reservation_ends {AT}: '{ID}' ends 2026-11-21 12:00 UTC; its machines are "
            "terminated from 2026-11-21 11:30 "
            "UTC on; fix: let jobs save before; run `make teardown` in time",
        ),
        (
            reserved_spec(),
            {"InstanceType": "p5e.48xlarge"},
            f"error reservation_type {AT}: '{ID}' is for p5e.48xlarge; the group has p5.48xlarge; "
            "fix: write `instance_type: p5e.48xlarge`, or name another",
        ),
        (
            reserved_spec(),
            {"AvailabilityZone": "us-east-1b"},
            f"error reservation_zone {AT}: '{ID}' is in us-east-1b; the group is in us-east-1a; "
            "fix: write `zones: [us-east-1b]` under aws and the group",
        ),
        (
            reserved_spec(aws={"region": "us-east-1"}),
            {},
            f"error reservation_zone {AT}: '{ID}' is in us-east-1a; without `aws.zones` the cluster may be created "
            "in another zone; fix: write `zones: [us-east-1a]` under aws",
        ),
        (
            reserved_spec(),
            {"InstancePlatform": "Windows"},
            f"error reservation_platform {AT}: '{ID}' is for Windows; the images are Linux/UNIX; "
            "fix: use a reservation for Linux/UNIX",
        ),
        (
            reserved_spec(),
            {"Tenancy": "dedicated"},
            f"error reservation_tenancy {AT}: '{ID}' is for tenancy 'dedicated'; nodes have 'default'; "
            "fix: use a reservation with default tenancy",
        ),
        (
            reserved_spec(),
            {"PlacementGroupArn": "arn:aws:ec2:us-east-1:123456789012:placement-group/close"},
            f"error reservation_placement {AT}: '{ID}' is in placement group 'close', but nodes with a reservation "
            "use none; fix: use a reservation outside placement groups",
        ),
        (
            reserved_spec(),
            {"AvailableInstanceCount": 1},
            f"error reservation_full {AT}: '{ID}': 1 of 2 machines free; the group has up to 2; "
            "fix: use fewer nodes, or a larger reservation",
        ),
        (
            reserved_spec(capacity={"fallback": ["on-demand"]}),
            {"AvailableInstanceCount": 1},
            f"warning reservation_full {AT}: '{ID}': 1 of 2 machines free; the group has up to 2; "
            "fix: the others are bought as on-demand",
        ),
        (
            reserved_spec(count=None, min=1, max=4),
            {},
            f"warning reservation_full {AT}: '{ID}': 2 of 2 machines free; the group has up to 4; "
            "fix: use fewer nodes, or a larger reservation",
        ),
    ],
    ids=lambda value: value.split(" ")[1] if isinstance(value, str) else "",
)
def test_each_unfit_reservation_has_its_message(described: ClusterSpec, changes: dict[str, Any], message: str) -> None:
    assert judge(described, reservation(**changes)) == [message]


def test_in_an_existing_vpc_named_zones_are_checked() -> None:
    network = {"vpc_id": "vpc-0", "subnet_ids": ["subnet-0"]}
    capacity = {"kind": "reservation", "reservation": ID}
    named = spec(aws=AWS, network=network, groups=group(fabric="efa", capacity=capacity))
    assert [line.split(" ")[1] for line in judge(named, reservation(AvailabilityZone="us-east-1b"))] == [
        "reservation_zone"
    ]
    unnamed = spec(network=network, groups=group(fabric="efa", capacity=capacity))
    assert judge(unnamed, reservation(AvailabilityZone="us-east-1b")) == []


def test_instances_in_use_by_this_cluster_count_as_free() -> None:
    taken = reservation(AvailableInstanceCount=0)
    assert judge(reserved_spec(), taken, in_use=2) == []
    (message,) = judge(reserved_spec(count=3), taken, in_use=2)
    assert "0 of 2 machines free" in message
    assert "free, 2 used by this cluster; the group has up to 3" in message


def test_only_fitting_reservations_of_a_pool_count() -> None:
    other = reservation(CapacityReservationId="cr-1", InstanceType="p4d.24xlarge")
    assert judge(reserved_spec(), reservation(), other) == []
    first = reservation(CapacityReservationId="cr-2", TotalInstanceCount=1, AvailableInstanceCount=1)
    (message,) = judge(reserved_spec(count=3), first, reservation(AvailableInstanceCount=1), other)
    assert f"'cr-2', '{ID}': 2 of 3 machines free" in message


def subject(canned_aws: CannedAws, described: ClusterSpec, running: tuple[RunningInstance, ...] = ()) -> Subject:
    return Subject(described, canned_aws.account, ME, running)


def create_reservation(aws: Moto, **changes: Any) -> str:
    defaults = {"InstanceType": "p5.48xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    response = aws.client("ec2").create_capacity_reservation(**{**defaults, "InstanceCount": 2, **changes})
    return str(response["CapacityReservation"]["CapacityReservationId"])


def test_a_reservation_is_looked_up_and_judged(canned_aws: CannedAws, aws: Moto) -> None:
    good, small = create_reservation(aws), create_reservation(aws, InstanceCount=1)
    fitting, too_small = (reserved_spec(capacity={"reservation": name}) for name in (good, small))
    assert format_issues(reservations.check_reservations(subject(canned_aws, fitting))) == []
    issues = reservations.check_reservations(subject(canned_aws, too_small))
    assert issue_codes(issues) == [("error", "reservation_full")]
    running = (RunningInstance("p5.48xlarge", False, "", 1, small),)
    assert format_issues(reservations.check_reservations(subject(canned_aws, too_small, running))) == []


def test_a_missing_reservation_is_an_error(canned_aws: CannedAws) -> None:
    assert format_issues(reservations.check_reservations(subject(canned_aws, reserved_spec()))) == [
        f"error reservation_missing {AT}: '{ID}' does not exist in us-east-1, or account 123456789012 may not use it; "
        "fix: name one that `aws ec2 describe-capacity-reservations` lists"
    ]


def test_members_of_a_reservation_group_are_judged(canned_aws: CannedAws, aws: Moto) -> None:
    inside = create_reservation(aws)
    arns = [f"arn:aws:ec2:us-east-1:123456789012:capacity-reservation/{inside}", "arn:aws:ec2:us-east-1:1:instance/i-0"]
    members = [{"Identifier": {"ResourceArn": arn, "ResourceType": "x"}} for arn in arns]
    canned_aws.answer("resource-groups", "ListGroupResources", {"Resources": members})
    pool = reserved_spec(capacity={"reservation": POOL})
    assert format_issues(reservations.check_reservations(subject(canned_aws, pool))) == []


def test_an_empty_reservation_group_is_an_error(canned_aws: CannedAws) -> None:
    canned_aws.answer("resource-groups", "ListGroupResources", {"Resources": []})
    pool = reserved_spec(capacity={"reservation": POOL})
    assert issue_codes(reservations.check_reservations(subject(canned_aws, pool))) == [("error", "reservation_missing")]


def test_without_a_reservation_no_call_is_made(canned_aws: CannedAws, aws: Moto) -> None:
    assert format_issues(reservations.check_reservations(subject(canned_aws, spec()))) == []
    assert aws.of("DescribeCapacityReservations") == []
