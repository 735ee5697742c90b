"""Pre-flight of existing filesystems and buckets, with exact messages."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import existing_storage
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
AT = "storage.shared.id"
FS = "fs-0123456789abcdef0"
VPC = "vpc-0123456789abcdef0"


def spec_with_filesystem(id_: str = FS) -> ClusterSpec:
    return spec(storage={"shared": {"kind": "existing", "id": id_}})


def spec_with_bucket(bucket: str) -> ClusterSpec:
    return spec(storage={"shared": {"kind": "fsx-lustre", "s3": f"s3://{bucket}/corpus"}})


def check_filesystems(canned_aws: CannedAws, described: ClusterSpec) -> list[str]:
    return format_issues(existing_storage.check_filesystems(Subject(described, canned_aws.account, ME)))


def check_buckets(canned_aws: CannedAws, described: ClusterSpec) -> list[str]:
    return format_issues(existing_storage.check_buckets(Subject(described, canned_aws.account, ME)))


def lustre(**changes: Any) -> dict[str, Any]:
    return {"FileSystemId": FS, "FileSystemType": "LUSTRE", "Lifecycle": "AVAILABLE", "VpcId": VPC, **changes}


@pytest.mark.parametrize(
    ("vpc", "changes", "messages"),
    [
        (VPC, {}, []),
        (VPC, {"Lifecycle": "UPDATING"}, []),
        (
            VPC,
            {"Lifecycle": "FAILED"},
            [
                f"error filesystem_state {AT}: '{FS}' is FAILED; allowed: AVAILABLE, UPDATING; "
                "fix: wait until it is available, or name another"
            ],
        ),
        (
            VPC,
            {"FileSystemType": "ONTAP"},
            [
                f"error filesystem_kind {AT}: '{FS}' is of type ONTAP; allowed: LUSTRE, or an EFS "
                "filesystem; fix: name another"
            ],
        ),
        (
            None,
            {},
            [
                f"error filesystem_network {AT}: '{FS}' is in {VPC}, the cluster in its own VPC: nodes could not "
                f"reach it; fix: write `vpc_id: {VPC}` and subnets of it under network"
            ],
        ),
    ],
)
def test_judge_lustre(vpc: str | None, changes: dict[str, Any], messages: list[str]) -> None:
    assert format_issues(existing_storage.judge_lustre(vpc, AT, lustre(**changes))) == messages


@pytest.mark.parametrize(
    ("state", "targets", "messages"),
    [
        ("available", [{"VpcId": VPC}], []),
        (
            "creating",
            [{"VpcId": VPC}],
            [
                f"error filesystem_state {AT}: '{FS}' is creating; allowed: available, updating; "
                "fix: wait until it is available, or name another"
            ],
        ),
        (
            "available",
            [],
            [
                f"error filesystem_unreachable {AT}: '{FS}' has no mount target: nothing can reach it; "
                "fix: create one in the nodes' subnets: `aws efs create-mount-target`"
            ],
        ),
        (
            "available",
            [{"VpcId": "vpc-1"}],
            [
                f"error filesystem_network {AT}: '{FS}' is in vpc-1, the cluster in {VPC}: nodes could not reach it; "
                "fix: write `vpc_id: vpc-1` and subnets of it under network"
            ],
        ),
    ],
)
def test_judge_efs(state: str, targets: list[dict[str, Any]], messages: list[str]) -> None:
    filesystem = {"FileSystemId": FS, "LifeCycleState": state}
    assert format_issues(existing_storage.judge_efs(VPC, AT, filesystem, targets)) == messages


def test_a_filesystem_that_is_neither_fsx_nor_efs_is_missing(canned_aws: CannedAws) -> None:
    assert check_filesystems(canned_aws, spec_with_filesystem()) == [
        f"error filesystem_missing {AT}: us-east-1 of account 123456789012 has no filesystem '{FS}', FSx or EFS; "
        "fix: name one of this region and account"
    ]


def test_an_fsx_filesystem_is_found_and_judged(canned_aws: CannedAws, aws: Moto) -> None:
    subnet = aws.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    created = aws.client("fsx").create_file_system(FileSystemType="ONTAP", StorageCapacity=1200, SubnetIds=[subnet])
    (message, *_) = check_filesystems(canned_aws, spec_with_filesystem(created["FileSystem"]["FileSystemId"]))
    assert message.startswith(f"error filesystem_kind {AT}")


def test_an_efs_filesystem_is_found_and_judged(canned_aws: CannedAws, aws: Moto) -> None:
    created = aws.client("efs").create_file_system(CreationToken="one")
    (message,) = check_filesystems(canned_aws, spec_with_filesystem(created["FileSystemId"]))
    assert message.startswith(f"error filesystem_unreachable {AT}")


def test_a_bucket_that_exists_is_fine(canned_aws: CannedAws, aws: Moto) -> None:
    aws.client("s3").create_bucket(Bucket="my-data")
    assert check_buckets(canned_aws, spec_with_bucket("my-data")) == []


def test_a_missing_bucket_is_an_error(canned_aws: CannedAws) -> None:
    assert check_buckets(canned_aws, spec_with_bucket("my-data")) == [
        "error bucket_missing storage.shared.s3: there is no bucket 'my-data'; "
        "fix: `aws s3 mb s3://my-data --region us-east-1`"
    ]


def test_a_bucket_that_cannot_be_listed_is_a_warning(canned_aws: CannedAws) -> None:
    canned_aws.refuse("s3", "HeadBucket", "403")
    assert check_buckets(canned_aws, spec_with_bucket("my-data")) == [
        f"warning bucket_closed storage.shared.s3: {ME.arn} may not list 'my-data': whether FSx can link it could "
        "not be checked; fix: allow s3:ListBucket on it, or ask its owner"
    ]


def test_a_bucket_in_another_region_is_an_error(canned_aws: CannedAws) -> None:
    canned_aws.answer("s3", "HeadBucket", {"BucketRegion": "eu-west-1"})
    assert check_buckets(canned_aws, spec_with_bucket("my-data")) == [
        "error bucket_region storage.shared.s3: 'my-data' is in eu-west-1, the cluster in us-east-1; FSx links buckets "
        "of its own region only; fix: use a bucket in the same region, or a cluster in the bucket's region"
    ]
