"""Filesystems and buckets that exist: found in moto, judged in exact words."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import existing_storage
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import words
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
AT = "storage.shared.id"
FS = "fs-0123456789abcdef0"
VPC = "vpc-0123456789abcdef0"


def existing(id_: str = FS) -> ClusterSpec:
    return spec(storage={"shared": {"kind": "existing", "id": id_}})


def linked(bucket: str) -> ClusterSpec:
    return spec(storage={"shared": {"kind": "fsx-lustre", "s3": f"s3://{bucket}/corpus"}})


def filesystems(answered: Answered, described: ClusterSpec) -> list[str]:
    return words(existing_storage.check_filesystems(Subject(described, answered.account, ME)))


def buckets(answered: Answered, described: ClusterSpec) -> list[str]:
    return words(existing_storage.check_buckets(Subject(described, answered.account, ME)))


def lustre(**changes: Any) -> dict[str, Any]:
    return {"FileSystemId": FS, "FileSystemType": "LUSTRE", "Lifecycle": "AVAILABLE", "VpcId": VPC, **changes}


@pytest.mark.parametrize(
    ("vpc", "changes", "said"),
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
def test_lustre(vpc: str | None, changes: dict[str, Any], said: list[str]) -> None:
    assert words(existing_storage.judge_lustre(vpc, AT, lustre(**changes))) == said


@pytest.mark.parametrize(
    ("state", "targets", "said"),
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
def test_efs(state: str, targets: list[dict[str, Any]], said: list[str]) -> None:
    found = {"FileSystemId": FS, "LifeCycleState": state}
    assert words(existing_storage.judge_efs(VPC, AT, found, targets)) == said


def test_neither_of_fsx_nor_of_efs(answered: Answered) -> None:
    assert filesystems(answered, existing()) == [
        f"error filesystem_missing {AT}: us-east-1 of account 123456789012 has no filesystem '{FS}', FSx or EFS; "
        "fix: name one of this region and account"
    ]


def test_one_of_fsx_is_found(answered: Answered, aws: Moto) -> None:
    subnet = aws.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    made = aws.client("fsx").create_file_system(FileSystemType="ONTAP", StorageCapacity=1200, SubnetIds=[subnet])
    (said, *_) = filesystems(answered, existing(made["FileSystem"]["FileSystemId"]))
    assert said.startswith(f"error filesystem_kind {AT}")


def test_one_of_efs_is_found(answered: Answered, aws: Moto) -> None:
    made = aws.client("efs").create_file_system(CreationToken="one")
    (said,) = filesystems(answered, existing(made["FileSystemId"]))
    assert said.startswith(f"error filesystem_unreachable {AT}")


def test_a_bucket_that_is_there(answered: Answered, aws: Moto) -> None:
    aws.client("s3").create_bucket(Bucket="my-data")
    assert buckets(answered, linked("my-data")) == []


def test_a_bucket_that_is_not(answered: Answered) -> None:
    assert buckets(answered, linked("my-data")) == [
        "error bucket_missing storage.shared.s3: there is no bucket 'my-data'; "
        "fix: `aws s3 mb s3://my-data --region us-east-1`"
    ]


def test_a_bucket_of_somebody_else(answered: Answered) -> None:
    answered.refuse("s3", "HeadBucket", "403")
    assert buckets(answered, linked("my-data")) == [
        f"warning bucket_closed storage.shared.s3: {ME.arn} may not list 'my-data': whether FSx can link it could "
        "not be checked; fix: allow s3:ListBucket on it, or ask its owner"
    ]


def test_a_bucket_elsewhere(answered: Answered) -> None:
    answered.answer("s3", "HeadBucket", {"BucketRegion": "eu-west-1"})
    assert buckets(answered, linked("my-data")) == [
        "error bucket_region storage.shared.s3: 'my-data' is in eu-west-1, the cluster in us-east-1; FSx links buckets "
        "of its own region only; fix: use a bucket in the same region, or a cluster in the bucket's region"
    ]
