"""Search for leftovers on AWS: every kind is listed and priced, and kept storage with what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends

from infra.resources.error import ResourceError
from infra.targets.aws.leftovers import search
from infra.targets.aws.leftovers.kind import ClusterResource, ResourceKind
from tests.infra.targets.aws.leftover_resources import (
    OURS,
    create_all,
    create_machines,
    create_network,
    list_leftovers,
    tags,
)
from tests.moto_server import ACCOUNT, REGION, Moto

pytestmark = pytest.mark.usefixtures("filled_moto_gaps")


def test_leftovers_that_cost_money_have_a_price(aws: Moto) -> None:
    create_all(aws, OURS)
    usd = {leftover.kind: leftover.usd_per_hour for leftover in list_leftovers(OURS) if leftover.usd_per_hour}
    assert set(usd) == {
        "instance",
        "volume",
        "snapshot",
        "FSx for Lustre filesystem",
        "private name zone",
        "VPC endpoint",
        "NAT gateway",
        "public address",
        "encryption key",
    }
    assert usd["FSx for Lustre filesystem"] == pytest.approx(1200 * 0.145 / 730)
    assert usd["instance"] > 1


def test_kept_storage_is_listed_with_what_it_needs(aws: Moto) -> None:
    create_all(aws, OURS, keep=True)
    reasons = {leftover.kind: leftover.keep_reason for leftover in list_leftovers(OURS) if leftover.keep_reason}
    assert reasons == {
        "FSx for Lustre filesystem": "keep: true",
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
        "VPC": "needed by it",
        "subnet": "needed by it",
        "security group": "needed by it",
    }


def test_snapshots_of_queue_and_accounting_are_kept_with_their_key(aws: Moto) -> None:
    ec2, kms = aws.client("ec2"), aws.client("kms")
    labels = [{"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in tags(OURS)]
    key, other = (kms.create_key(Tags=labels)["KeyMetadata"] for _ in range(2))
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=50, Encrypted=True, KmsKeyId=key["Arn"])["VolumeId"]
    labels_of_snapshot = [{"ResourceType": "snapshot", "Tags": tags(OURS, **{"muster.keep": "true"})}]
    snapshot = ec2.create_snapshot(VolumeId=volume, TagSpecifications=labels_of_snapshot)["SnapshotId"]
    # Unlike AWS, moto forgets the key of the volume.
    ec2_backends[ACCOUNT][REGION].snapshots[snapshot].kms_key_id = key["Arn"]
    leftovers = {leftover.name: leftover for leftover in list_leftovers(OURS)}
    reasons = {name: leftover.keep_reason for name, leftover in leftovers.items()}
    assert reasons == {snapshot: "keep: true", key["KeyId"]: "needed by it", other["KeyId"]: ""}
    assert leftovers[snapshot].usd_per_hour == pytest.approx(50 * 0.05 / 730)


@pytest.mark.fault(29)
def test_a_leftover_names_the_kinds_that_use_it_and_the_search_those_it_could_not_list(aws: Moto) -> None:
    create_all(aws, OURS)
    aws.fail("DescribeNatGateways", "UnauthorizedOperation")
    leftovers = search.find_leftovers(OURS, REGION)
    used_by = {leftover.kind: leftover.used_by for leftover in leftovers.resources}
    assert used_by["volume"] == {"instance"}
    assert used_by["public address"] == {"NAT gateway"}
    assert leftovers.unseen_kinds == {"NAT gateway"}


def test_an_ended_spot_request_is_not_a_leftover(aws: Moto) -> None:
    """The tagging service lists it for days: otherwise teardown of a cluster with spot nodes would never finish."""
    create_machines(aws, OURS, create_network(aws, OURS)[0])
    (request,) = (leftover for leftover in list_leftovers(OURS) if leftover.kind == "spot request")
    (moto_request,) = ec2_backends[ACCOUNT][REGION].spot_instance_requests.values()
    assert request.name == moto_request.id
    moto_request.state = "closed"
    arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:spot-instances-request/{request.name}"
    assert search._read_arn_type(arn) in {arn for kind in search.KINDS for arn in kind.arn_types}
    assert "spot request" not in [leftover.kind for leftover in list_leftovers(OURS)]


def test_a_denied_listing_is_named_and_hides_nothing_else(aws: Moto) -> None:
    create_all(aws, OURS)
    everything = list_leftovers(OURS)
    aws.fail("DescribeVolumes", "UnauthorizedOperation")
    aws.fail("DescribeSubnets", "UnauthorizedOperation")
    results = search.find_leftovers(OURS, REGION)
    assert results.unseen == ("ec2 (volume, subnet) because UnauthorizedOperation",)
    assert results.resources == [leftover for leftover in everything if leftover.kind not in ("volume", "subnet")]


def test_resources_that_unlisted_storage_may_need_are_kept(aws: Moto) -> None:
    create_all(aws, OURS, keep=True)
    for action in ("DescribeFileSystems", "GET /2015-02-01/file-systems"):
        aws.fail(action, "AccessDeniedException", times=9)
    results = search.find_leftovers(OURS, REGION)
    assert any("filesystem" in reason for reason in results.unseen)
    kept_kinds = {leftover.kind for leftover in results.resources if leftover.keep_reason}
    assert kept_kinds == {"encryption key", "VPC", "subnet", "security group"}


def test_if_nothing_can_be_listed_there_is_no_receipt(monkeypatch: pytest.MonkeyPatch, aws: Moto) -> None:
    monkeypatch.setattr(search, "KINDS", tuple(map(denying, search.KINDS)))
    aws.fail("GetResources", "ExpiredToken", times=9)
    with pytest.raises(ResourceError, match=r"cannot be listed \(ec2 \(instance, .* because ExpiredToken\)"):
        list_leftovers(OURS)


def denying(kind: ResourceKind) -> ResourceKind:
    def find(*_: object) -> list[ClusterResource]:
        raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "injected"}}, "Describe")

    return replace(kind, find=find)


@pytest.mark.usefixtures("unreachable_aws")
def test_if_aws_is_unreachable_there_is_no_receipt() -> None:
    with pytest.raises(ResourceError, match="cannot be listed"):
        list_leftovers(OURS)
