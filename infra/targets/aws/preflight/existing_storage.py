"""Checks of existing storage: filesystems by id, and buckets that FSx links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.preflight.subject import Subject

# FSx and EFS use the same error code.
_NO_FILESYSTEM = "FileSystemNotFound"
_NO_BUCKET, _NO_ACCESS = ("404", "NoSuchBucket"), ("403", "AccessDenied")
# A filesystem stays usable while FSx changes its size or throughput.
_LUSTRE_USABLE = ("AVAILABLE", "UPDATING")
_EFS_USABLE = ("available", "updating")


def check_filesystems(subject: Subject) -> Iterator[Issue]:
    """Report existing filesystems that are missing or cannot be mounted."""
    for name, storage in subject.spec.storage.items():
        if storage.kind != "existing" or not storage.id:
            continue
        where = f"storage.{name}.id"
        if lustre := _describe_lustre(subject, storage.id):
            yield from judge_lustre(subject.spec.network.vpc_id, where, lustre)
        elif efs := _describe_efs(subject, storage.id):
            targets = subject.client("efs").describe_mount_targets(FileSystemId=storage.id)["MountTargets"]
            yield from judge_efs(subject.spec.network.vpc_id, where, efs, targets)
        else:
            message = (
                f"{subject.region} of account {subject.identity.account} has no filesystem '{storage.id}', FSx or EFS"
            )
            yield error("filesystem_missing", where, message, "name one of this region and account")


def judge_lustre(vpc: str | None, where: str, filesystem: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield issues of an FSx filesystem: its type, state and network."""
    name, kind = filesystem["FileSystemId"], filesystem["FileSystemType"]
    if kind != "LUSTRE":
        message = f"'{name}' is of type {kind}; allowed: LUSTRE, or an EFS filesystem"
        yield error("filesystem_kind", where, message, "name another")
    state = filesystem.get("Lifecycle", "AVAILABLE")
    if state not in _LUSTRE_USABLE:
        message = f"'{name}' is {state}; allowed: {', '.join(_LUSTRE_USABLE)}"
        yield error("filesystem_state", where, message, "wait until it is available, or name another")
    yield from _check_same_network(vpc, where, name, filesystem.get("VpcId", ""))


def judge_efs(
    vpc: str | None, where: str, filesystem: Mapping[str, Any], targets: list[Mapping[str, Any]]
) -> Iterator[Issue]:
    """Yield issues of an EFS filesystem: its state, mount targets and network."""
    name, state = filesystem["FileSystemId"], filesystem["LifeCycleState"]
    if state not in _EFS_USABLE:
        message = f"'{name}' is {state}; allowed: {', '.join(_EFS_USABLE)}"
        yield error("filesystem_state", where, message, "wait until it is available, or name another")
    if not targets:
        message = f"'{name}' has no mount target: nothing can reach it"
        yield error(
            "filesystem_unreachable", where, message, "create one in the nodes' subnets: `aws efs create-mount-target`"
        )
        return
    target_vpcs = {target["VpcId"] for target in targets if "VpcId" in target}
    if target_vpcs and vpc not in target_vpcs:
        yield from _check_same_network(vpc, where, name, sorted(target_vpcs)[0])


def check_buckets(subject: Subject) -> Iterator[Issue]:
    """Report buckets that FSx cannot link."""
    for name, storage in subject.spec.storage.items():
        if storage.s3:
            yield from _check_bucket(subject, f"storage.{name}.s3", urlsplit(storage.s3).netloc)


def _check_bucket(subject: Subject, where: str, bucket: str) -> Iterator[Issue]:
    try:
        response = subject.client("s3").head_bucket(Bucket=bucket)
    except ClientError as failure:
        code = failure.response["Error"]["Code"]
        if code in _NO_BUCKET:
            yield error(
                "bucket_missing",
                where,
                f"there is no bucket '{bucket}'",
                f"`aws s3 mb s3://{bucket} --region {subject.region}`",
            )
            return
        if code in _NO_ACCESS:
            message = f"{subject.identity.arn} may not list '{bucket}': whether FSx can link it could not be checked"
            yield warning("bucket_closed", where, message, "allow s3:ListBucket on it, or ask its owner")
            return
        raise
    region = response.get("BucketRegion", subject.region)
    if region != subject.region:
        message = (
            f"'{bucket}' is in {region}, the cluster in {subject.region}; FSx links buckets of its own region only"
        )
        yield error(
            "bucket_region", where, message, "use a bucket in the same region, or a cluster in the bucket's region"
        )


def _check_same_network(vpc: str | None, where: str, name: str, storage_vpc: str) -> Iterator[Issue]:
    if storage_vpc and storage_vpc != vpc:
        cluster_vpc = vpc or "its own VPC"
        message = f"'{name}' is in {storage_vpc}, the cluster in {cluster_vpc}: nodes could not reach it"
        yield error(
            "filesystem_network", where, message, f"write `vpc_id: {storage_vpc}` and subnets of it under network"
        )


def _describe_lustre(subject: Subject, id_: str) -> Mapping[str, Any] | None:
    try:
        filesystems = subject.client("fsx").describe_file_systems(FileSystemIds=[id_])["FileSystems"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_FILESYSTEM:
            raise
        return None
    return filesystems[0] if filesystems else None


def _describe_efs(subject: Subject, id_: str) -> Mapping[str, Any] | None:
    try:
        filesystems = subject.client("efs").describe_file_systems(FileSystemId=id_)["FileSystems"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_FILESYSTEM:
            raise
        return None
    return filesystems[0] if filesystems else None
