"""What a stack names by id exists before its rehearsal: the pre-flight of `up` finds it and has no errors."""

from __future__ import annotations

import boto3
import pytest

from infra.home import Home
from infra.targets.aws.plan import images
from infra.targets.aws.preflight import PreflightOptions, existing_network, existing_storage, run_preflight
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.checks import CHECKS
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.existing_resources import create_existing
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.spec import aws_section, region_of
from infra.targets.registry import read_spec
from tests.moto_server import ACCOUNT, Moto

CIDR = "10.96.0.0/20"
EXISTING_VPC, FULL = "aws-existing-vpc", "aws-full"
# A rehearsal leaves policies and hooks out.
CHECKED = tuple(check for check in CHECKS if check.what not in ("policies", "hooks"))
ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/me")


@pytest.fixture
def subject(request: pytest.FixtureRequest, aws: Moto) -> Subject:
    """Return a stack in an account that has what the stack names by id."""
    moto_gaps.apply()
    spec = read_spec(Home.of({}).stack(request.param).file)
    create_existing(spec, MotoAccount(ACCOUNT, region_of(spec)), CIDR)
    return Subject(spec, Account(boto3.Session(), region_of(spec)), ME)


@pytest.mark.parametrize("subject", [EXISTING_VPC, FULL], indirect=True)
def test_the_pre_flight_has_no_errors(subject: Subject) -> None:
    for path in images.parameters(subject.spec).values():
        moto_gaps.publish_image(path, subject.region)
    result = run_preflight(subject.spec, subject.account, PreflightOptions(checks=CHECKED))
    assert [issue for issue in result.issues if issue.level == "error"] == []


@pytest.mark.parametrize("subject", [EXISTING_VPC], indirect=True)
def test_the_vpc_its_subnets_and_its_storage_pass_the_pre_flight(subject: Subject) -> None:
    assert list(existing_network.check_network(subject)) == []
    assert list(existing_storage.check_filesystems(subject)) == []
    billed = MotoAccount(ACCOUNT, subject.region).list_billed()
    assert [what.rpartition(" ")[0] for what in billed] == ["address", "NAT gateway", "filesystem"]


@pytest.mark.parametrize("subject", [FULL], indirect=True)
def test_images_policy_key_reservation_and_bucket_exist_under_their_ids(subject: Subject) -> None:
    section, group = aws_section(subject.spec), subject.spec.groups["h200"]
    assert section
    named = subject.client("ec2").describe_images(ImageIds=[section.ami, section.plain_ami])["Images"]
    assert len(named) == 2
    assert subject.client("iam").get_policy(PolicyArn=section.permissions_boundary)
    assert subject.client("kms").describe_key(KeyId=section.kms_key)["KeyMetadata"]["Enabled"]
    ids = [group.capacity.reservation]
    (reserved,) = subject.client("ec2").describe_capacity_reservations(CapacityReservationIds=ids)[
        "CapacityReservations"
    ]
    assert (reserved["InstanceType"], reserved["AvailabilityZone"]) == ("p5en.48xlarge", "us-east-1a")
    assert list(existing_storage.check_buckets(subject)) == []
