"""Storage that exists: filesystems by id, and buckets that appear as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.preflight.subject import Subject

# Both services say the same.
_NO_SUCH = "FileSystemNotFound"
_NO_BUCKET, _NO_ENTRY = ("404", "NoSuchBucket"), ("403", "AccessDenied")
# FSx may still grow, or take over a new throughput: it is in use meanwhile.
_LUSTRE_WORKS = ("AVAILABLE", "UPDATING")
_EFS_WORKS = ("available", "updating")


def filesystems(subject: Subject) -> Iterator[Issue]:
    for name, storage in subject.spec.storage.items():
        if storage.kind != "existing" or not storage.id:
            continue
        where = f"storage.{name}.id"
        if lustre := _lustre(subject, storage.id):
            yield from judge_lustre(subject.spec.network.vpc_id, where, lustre)
        elif efs := _efs(subject, storage.id):
            targets = subject.client("efs").describe_mount_targets(FileSystemId=storage.id)["MountTargets"]
            yield from judge_efs(subject.spec.network.vpc_id, where, efs, targets)
        else:
            message = (
                f"{subject.region} of account {subject.identity.account} has no filesystem '{storage.id}', FSx or EFS"
            )
            yield error("filesystem_missing", where, message, "name one of this region and account")


def judge_lustre(vpc: str | None, where: str, found: Mapping[str, Any]) -> Iterator[Issue]:
    name, kind = found["FileSystemId"], found["FileSystemType"]
    if kind != "LUSTRE":
        message = f"'{name}' is of type {kind}; allowed: LUSTRE, or one of EFS"
        yield error("filesystem_kind", where, message, "name another")
    state = found.get("Lifecycle", "AVAILABLE")
    if state not in _LUSTRE_WORKS:
        message = f"'{name}' is {state}; allowed: {', '.join(_LUSTRE_WORKS)}"
        yield error("filesystem_state", where, message, "wait until it is available, or name another")
    yield from _same_network(vpc, where, name, found.get("VpcId", ""))


def judge_efs(
    vpc: str | None, where: str, found: Mapping[str, Any], targets: list[Mapping[str, Any]]
) -> Iterator[Issue]:
    name, state = found["FileSystemId"], found["LifeCycleState"]
    if state not in _EFS_WORKS:
        message = f"'{name}' is {state}; allowed: {', '.join(_EFS_WORKS)}"
        yield error("filesystem_state", where, message, "wait until it is available, or name another")
    if not targets:
        message = f"'{name}' has no mount target: nothing can reach it"
        yield error(
            "filesystem_unreachable", where, message, "make one in the nodes' subnets: `aws efs create-mount-target`"
        )
        return
    known = {one["VpcId"] for one in targets if "VpcId" in one}
    if known and vpc not in known:
        yield from _same_network(vpc, where, name, sorted(known)[0])


def buckets(subject: Subject) -> Iterator[Issue]:
    for name, storage in subject.spec.storage.items():
        if storage.s3:
            yield from _bucket(subject, f"storage.{name}.s3", urlsplit(storage.s3).netloc)


def _bucket(subject: Subject, where: str, bucket: str) -> Iterator[Issue]:
    try:
        found = subject.client("s3").head_bucket(Bucket=bucket)
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
        if code in _NO_ENTRY:
            message = (
                f"{subject.identity.arn} may not look into '{bucket}': whether FSx can link it could not be judged"
            )
            yield warning("bucket_closed", where, message, "allow s3:ListBucket on it, or ask its owner")
            return
        raise
    there = found.get("BucketRegion", subject.region)
    if there != subject.region:
        message = f"'{bucket}' is in {there}, the cluster in {subject.region}; FSx links buckets of its own region only"
        yield error("bucket_region", where, message, "a bucket in the same region, or a cluster where the bucket is")


def _same_network(vpc: str | None, where: str, name: str, theirs: str) -> Iterator[Issue]:
    if theirs and theirs != vpc:
        mine = vpc or "a VPC of its own"
        message = f"'{name}' is in {theirs}, the cluster in {mine}: nodes could not reach it"
        yield error("filesystem_network", where, message, f"write `vpc_id: {theirs}` and subnets of it under network")


def _lustre(subject: Subject, id_: str) -> Mapping[str, Any] | None:
    try:
        found = subject.client("fsx").describe_file_systems(FileSystemIds=[id_])["FileSystems"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_SUCH:
            raise
        return None
    return found[0] if found else None


def _efs(subject: Subject, id_: str) -> Mapping[str, Any] | None:
    try:
        found = subject.client("efs").describe_file_systems(FileSystemId=id_)["FileSystems"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_SUCH:
            raise
        return None
    return found[0] if found else None
