"""Removal of leftovers on AWS: every kind is removed, in order and with retries, and nothing of another cluster."""

from __future__ import annotations

import time
from functools import partial

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws import names
from infra.targets.aws.client import create_client
from infra.targets.aws.leftovers import kind, search
from infra.targets.aws.leftovers.kind import AccountRegion
from infra.targets.aws.leftovers.registry import KINDS, USERS
from infra.targets.target import Leftover
from slurm.power.launcher import Fault
from tests.infra.targets.aws.leftover_resources import (
    OURS,
    THEIRS,
    create_all,
    create_network,
    list_leftovers,
    spec,
)
from tests.moto_server import REGION, Moto

pytestmark = pytest.mark.usefixtures("filled_moto_gaps")
LATER = float("inf")


@pytest.fixture
def both_clusters(aws: Moto) -> Moto:
    create_all(aws, OURS)
    create_all(aws, THEIRS)
    return aws


def test_every_kind_is_removed_and_another_cluster_is_not_touched(both_clusters: Moto) -> None:
    ours, theirs = list_leftovers(OURS), list_leftovers(THEIRS)
    assert {leftover.kind for leftover in ours} == {kind.name for kind in search.KINDS}
    assert {leftover.name for leftover in ours} & {leftover.name for leftover in theirs} == set()
    for leftover in ours:
        search.remove_leftover(leftover, LATER, AccountRegion(REGION), sleep=lambda _s: None)
    assert list_leftovers(OURS) == []
    assert list_leftovers(THEIRS) == theirs


def test_a_zone_whose_tagging_failed_is_removed_and_one_of_somebody_else_is_not(aws: Moto) -> None:
    route53 = aws.client("route53")
    for number, comment in enumerate((names.zone_comment(OURS), "of somebody else")):
        config = {"Comment": comment, "PrivateZone": False}
        route53.create_hosted_zone(Name=names.domain(OURS), CallerReference=str(number), HostedZoneConfig=config)
    (zone,) = list_leftovers(OURS)
    search.remove_leftover(zone, LATER, AccountRegion(REGION), sleep=lambda _s: None)
    (other,) = route53.list_hosted_zones()["HostedZones"]
    assert other["Config"]["Comment"] == "of somebody else"


@pytest.fixture
def vpc(aws: Moto) -> Leftover:
    created = aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16", **spec("vpc", OURS))
    return Leftover("VPC", created["Vpc"]["VpcId"], region=REGION)


@pytest.mark.fault(29)
def test_removal_is_retried_while_a_resource_is_in_use(aws: Moto, vpc: Leftover) -> None:
    aws.fail("DeleteVpc", "DependencyViolation", times=2)
    waits: list[float] = []
    search.remove_leftover(vpc, LATER, AccountRegion(REGION), sleep=waits.append)
    assert waits == [1.0, 2.0]
    assert vpc.name not in [other["VpcId"] for other in aws.client("ec2").describe_vpcs()["Vpcs"]]
    # A resource that no longer exists counts as removed.
    search.remove_leftover(vpc, LATER, AccountRegion(REGION))


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_transient_errors_are_retried(
    aws: Moto,
    vpc: Leftover,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(kind, "create_client", partial(create_client, attempts=1))
    aws.fail("DeleteVpc", code, times=2)
    waits: list[float] = []
    search.remove_leftover(vpc, LATER, AccountRegion(REGION), sleep=waits.append)
    assert waits == [1.0, 2.0]


@pytest.mark.fault(29)
def test_removal_of_a_resource_in_use_times_out(aws: Moto, vpc: Leftover) -> None:
    aws.fail("DeleteVpc", "DependencyViolation", times=99)
    with pytest.raises(ResourceError, match=f"AWS refused to remove VPC {vpc.name}"):
        search.remove_leftover(vpc, time.monotonic(), AccountRegion(REGION), sleep=lambda _s: None)


@pytest.mark.fault(29)
def test_the_network_interfaces_that_hold_a_resource_are_named(aws: Moto) -> None:
    """A filesystem that is being deleted has them for a while, although it is listed no longer."""
    subnet, group = create_network(aws, OURS)
    ec2 = aws.client("ec2")
    attached = [
        ec2.create_network_interface(SubnetId=subnet, Groups=[group], Description=text)["NetworkInterface"]
        for text in ("AWS created network interface for fs-1", "")
    ]
    ids = [interface["NetworkInterfaceId"] for interface in attached]
    aws.fail("DeleteSecurityGroup", "DependencyViolation", times=99)
    leftover = Leftover("security group", group, region=REGION)
    with pytest.raises(ResourceError) as error:
        search.remove_leftover(leftover, time.monotonic(), AccountRegion(REGION), sleep=lambda _s: None)
    for text in (f"{ids[0]} (AWS created network interface for fs-1)", ids[1], f"security group {group}: Dependency"):
        assert text in str(error.value)
    aws.fail("DescribeNetworkInterfaces", "UnauthorizedOperation", times=99)
    with pytest.raises(ResourceError, match=f"security group {group}: DependencyViolation"):
        search.remove_leftover(leftover, time.monotonic(), AccountRegion(REGION), sleep=lambda _s: None)


@pytest.mark.fault(29, place="unit")
def test_what_uses_a_resource_is_removed_before_it() -> None:
    for used, users in USERS.items():
        assert {user for user in users if KINDS.index(user) >= KINDS.index(used)} == set(), used.name


@pytest.mark.parametrize(
    ("code", "message", "temporary"),
    [
        ("InvalidParameterValue", "Network interface 'eni-1' is currently in use.", True),
        ("InvalidParameterValue", "Value (x) is not valid", False),
        ("VolumeInUse", "", True),
        ("UnauthorizedOperation", "", False),
        ("NoAnswer", "", True),
    ],
)
def test_temporary_errors_are_recognized(code: str, message: str, temporary: bool) -> None:
    assert search._is_temporary(Fault("throttle" if code == "NoAnswer" else "broken", code, message)) is temporary


@pytest.mark.usefixtures("unreachable_aws")
def test_a_lost_connection_error_names_the_leftover() -> None:
    leftover = Leftover("VPC", "vpc-1", region=REGION)
    with pytest.raises(ResourceError, match="AWS refused to remove VPC vpc-1: Could not connect"):
        search.remove_leftover(leftover, time.monotonic(), AccountRegion(REGION))


def test_a_denied_removal_error_names_the_resource_and_the_code(aws: Moto, vpc: Leftover) -> None:
    aws.fail("DeleteVpc", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match=f"VPC {vpc.name}: UnauthorizedOperation: injected"):
        search.remove_leftover(vpc, LATER, AccountRegion(REGION))


def test_unknown_tagged_resources_are_listed_but_not_removed(aws: Moto) -> None:
    aws.client("sqs").create_queue(QueueName="q", tags={"muster.cluster": OURS, "muster.stack": "s"})
    (leftover,) = list_leftovers(OURS)
    assert (leftover.kind, leftover.name, leftover.stack) == (
        "tagged resource",
        f"arn:aws:sqs:{REGION}:123456789012:q",
        "s",
    )
    with pytest.raises(ResourceError, match="sqs"):
        search.remove_leftover(leftover, LATER, AccountRegion(REGION))
