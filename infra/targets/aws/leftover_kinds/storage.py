"""Where data lies: shared filesystems, the bucket of bundles, and the key without which none of it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from cluster import names as tags
from infra.targets.aws import names
from infra.targets.aws.leftover_kinds.kind import Account, Found, Kind, batches, belongs, tags_of, usd_per_hour

_GB = 2**30
# The shortest that AWS allows.
_KEY_DAYS = 7
_DELETE_AT_ONCE = 1000


def _lustre(account: Account, cluster: str) -> Iterator[Found]:
    for one in account.pages("fsx", "describe_file_systems", "FileSystems"):
        found = tags_of(one.get("Tags"))
        if belongs(found, cluster) and one.get("Lifecycle") != "DELETING":
            speed = one.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
            usd = usd_per_hour(f"fsx-lustre-{speed}", one["StorageCapacity"]) if speed else 0.0
            ground = frozenset((one.get("VpcId", ""), *one.get("SubnetIds", ()), _key_id(one)))
            yield Found(one["FileSystemId"], found, _moment(one), usd, ground)


def _remove_lustre(account: Account, id_: str) -> None:
    account.ask("fsx").delete_file_system(FileSystemId=id_, LustreConfiguration={"SkipFinalBackup": True})


def _efs(account: Account, cluster: str) -> Iterator[Found]:
    """Its mount targets are no part of it: they go with the network."""
    for one in account.pages("efs", "describe_file_systems", "FileSystems"):
        found = tags_of(one.get("Tags"))
        if belongs(found, cluster) and one["LifeCycleState"] not in ("deleting", "deleted"):
            usd = usd_per_hour("efs", one["SizeInBytes"]["Value"] / _GB)
            yield Found(one["FileSystemId"], found, _moment(one), usd, frozenset((_key_id(one),)))


def _remove_efs(account: Account, id_: str) -> None:
    efs = account.ask("efs")
    for target in efs.describe_mount_targets(FileSystemId=id_)["MountTargets"]:
        # One on its way out may be gone by now, and "not found" would read as if the filesystem were.
        if target["LifeCycleState"] not in ("deleting", "deleted"):
            efs.delete_mount_target(MountTargetId=target["MountTargetId"])
    efs.delete_file_system(FileSystemId=id_)


def _bucket(account: Account, cluster: str) -> Iterator[Found]:
    name = names.bucket(cluster, account.number, account.region)
    try:
        found = tags_of(account.ask("s3").get_bucket_tagging(Bucket=name)["TagSet"])
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchBucket", "NoSuchTagSet"):
            return
        raise
    if belongs(found, cluster):
        yield Found(name, found)


def _remove_bucket(account: Account, name: str) -> None:
    s3 = account.ask("s3")
    for key in ("Versions", "DeleteMarkers"):
        held = list(account.pages("s3", "list_object_versions", key, Bucket=name))
        for batch in batches(held, _DELETE_AT_ONCE):
            objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in batch]
            s3.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True})
    s3.delete_bucket(Bucket=name)


def _keys(account: Account, cluster: str) -> Iterator[Found]:
    """Its alias may be gone already: it is asked for by its tag. It stays with what it encrypts."""
    wanted: dict[str, Any] = {
        "TagFilters": [{"Key": tags.CLUSTER, "Values": [cluster]}],
        "ResourceTypeFilters": ["kms:key"],
    }
    for one in account.pages("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", **wanted):
        about = account.ask("kms").describe_key(KeyId=one["ResourceARN"])["KeyMetadata"]
        if about["KeyState"] != "PendingDeletion":
            usd = usd_per_hour("kms-key")
            yield Found(about["KeyId"], tags_of(one["Tags"]), about["CreationDate"].isoformat(timespec="seconds"), usd)


def _remove_key(account: Account, id_: str) -> None:
    kms = account.ask("kms")
    for alias in kms.list_aliases(KeyId=id_)["Aliases"]:
        kms.delete_alias(AliasName=alias["AliasName"])
    kms.schedule_key_deletion(KeyId=id_, PendingWindowInDays=_KEY_DAYS)


def _key_id(one: dict[str, Any]) -> str:
    """Filesystems have its address."""
    return str(one.get("KmsKeyId", "")).rpartition("/")[2]


def _moment(one: dict[str, Any]) -> str:
    moment = one.get("CreationTime")
    return moment.isoformat(timespec="seconds") if moment else ""


LUSTRE = Kind("FSx for Lustre filesystem", _lustre, _remove_lustre, ("fsx:file-system", "fsx:association"))
EFS = Kind("EFS filesystem", _efs, _remove_efs, ("elasticfilesystem:file-system",))
BUCKET = Kind("bucket", _bucket, _remove_bucket, ("s3:bucket",))
KEY = Kind("encryption key", _keys, _remove_key, ("kms:key",))
