"""Storage of a cluster: shared filesystems, the bucket of bundles, and the key that encrypts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from cluster import names as tag_names
from infra.targets.aws import names
from infra.targets.aws.leftovers.kind import (
    AccountRegion,
    ClusterResource,
    ResourceKind,
    compute_usd_per_hour,
    has_cluster_tag,
    read_tags,
    split_batches,
)

_GB = 2**30
# The shortest waiting period that AWS allows.
_KEY_DELETION_DAYS = 7
_OBJECTS_PER_DELETE = 1000


def _list_lustre(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    for filesystem in account.list_items("fsx", "describe_file_systems", "FileSystems"):
        tags = read_tags(filesystem.get("Tags"))
        if has_cluster_tag(tags, cluster) and filesystem.get("Lifecycle") != "DELETING":
            speed = filesystem.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
            usd = compute_usd_per_hour(f"fsx-lustre-{speed}", filesystem["StorageCapacity"]) if speed else 0.0
            requires = frozenset(
                (filesystem.get("VpcId", ""), *filesystem.get("SubnetIds", ()), _read_key_id(filesystem))
            )
            yield ClusterResource(filesystem["FileSystemId"], tags, _format_creation_time(filesystem), usd, requires)


def _remove_lustre(account: AccountRegion, id_: str) -> None:
    account.client("fsx").delete_file_system(FileSystemId=id_, LustreConfiguration={"SkipFinalBackup": True})


def _list_efs(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield EFS filesystems; they do not require the network, because mount targets can be removed."""
    for filesystem in account.list_items("efs", "describe_file_systems", "FileSystems"):
        tags = read_tags(filesystem.get("Tags"))
        if has_cluster_tag(tags, cluster) and filesystem["LifeCycleState"] not in ("deleting", "deleted"):
            usd = compute_usd_per_hour("efs", filesystem["SizeInBytes"]["Value"] / _GB)
            yield ClusterResource(
                filesystem["FileSystemId"],
                tags,
                _format_creation_time(filesystem),
                usd,
                frozenset((_read_key_id(filesystem),)),
            )


def _list_mount_targets(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield mount targets of the cluster's filesystems that use its security groups; they have no tags themselves.

    A person may have added others. Those of a kept filesystem go too, because the network that they use does.
    """
    filesystems = list(_list_efs(account, cluster))
    interfaces = _list_interfaces(account, cluster) if filesystems else set()
    for filesystem in filesystems:
        own_tags = {key: value for key, value in filesystem.tags.items() if key != tag_names.KEEP}
        for target in _list_existing_targets(account, filesystem.id):
            if target.get("NetworkInterfaceId") in interfaces:
                yield ClusterResource(target["MountTargetId"], own_tags)


def _list_interfaces(account: AccountRegion, cluster: str) -> set[str]:
    """Return the network interfaces that use a security group of the cluster."""
    own = [{"Name": f"tag:{tag_names.CLUSTER}", "Values": [cluster]}]
    groups = account.list_items("ec2", "describe_security_groups", "SecurityGroups", Filters=own)
    using = [{"Name": "group-id", "Values": [group["GroupId"] for group in groups]}]
    if not using[0]["Values"]:
        return set()
    interfaces = account.list_items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=using)
    return {interface["NetworkInterfaceId"] for interface in interfaces}


def _list_existing_targets(account: AccountRegion, filesystem: str) -> list[dict[str, Any]]:
    """Return the mount targets of a filesystem, without those that are being deleted and may be gone by now."""
    targets = account.list_items("efs", "describe_mount_targets", "MountTargets", FileSystemId=filesystem)
    return [target for target in targets if target["LifeCycleState"] not in ("deleting", "deleted")]


def _remove_mount_target(account: AccountRegion, id_: str) -> None:
    account.client("efs").delete_mount_target(MountTargetId=id_)


def _remove_efs(account: AccountRegion, id_: str) -> None:
    # The error of a mount target that is gone would look like that of the filesystem.
    for target in _list_existing_targets(account, id_):
        _remove_mount_target(account, target["MountTargetId"])
    account.client("efs").delete_file_system(FileSystemId=id_)


def _list_buckets(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    name = names.bucket(cluster, account.account_id, account.region)
    try:
        tags = read_tags(account.client("s3").get_bucket_tagging(Bucket=name)["TagSet"])
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchBucket", "NoSuchTagSet"):
            return
        raise
    if has_cluster_tag(tags, cluster):
        yield ClusterResource(name, tags)


def _remove_bucket(account: AccountRegion, name: str) -> None:
    s3 = account.client("s3")
    for key in ("Versions", "DeleteMarkers"):
        versions = list(account.list_items("s3", "list_object_versions", key, Bucket=name))
        for batch in split_batches(versions, _OBJECTS_PER_DELETE):
            objects = [{"Key": version["Key"], "VersionId": version["VersionId"]} for version in batch]
            s3.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True})
    s3.delete_bucket(Bucket=name)


def _list_keys(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield keys by tag, because the alias may be gone already."""
    query: dict[str, Any] = {
        "TagFilters": [{"Key": tag_names.CLUSTER, "Values": [cluster]}],
        "ResourceTypeFilters": ["kms:key"],
    }
    for mapping in account.list_items("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", **query):
        metadata = account.client("kms").describe_key(KeyId=mapping["ResourceARN"])["KeyMetadata"]
        if metadata["KeyState"] != "PendingDeletion":
            usd = compute_usd_per_hour("kms-key")
            yield ClusterResource(
                metadata["KeyId"],
                read_tags(mapping["Tags"]),
                metadata["CreationDate"].isoformat(timespec="seconds"),
                usd,
            )


def _remove_key(account: AccountRegion, id_: str) -> None:
    kms = account.client("kms")
    for alias in kms.list_aliases(KeyId=id_)["Aliases"]:
        kms.delete_alias(AliasName=alias["AliasName"])
    kms.schedule_key_deletion(KeyId=id_, PendingWindowInDays=_KEY_DELETION_DAYS)


def _read_key_id(filesystem: dict[str, Any]) -> str:
    """Return the id of the key, which filesystems name by its ARN."""
    return str(filesystem.get("KmsKeyId", "")).rpartition("/")[2]


def _format_creation_time(filesystem: dict[str, Any]) -> str:
    moment = filesystem.get("CreationTime")
    return moment.isoformat(timespec="seconds") if moment else ""


LUSTRE = ResourceKind("FSx for Lustre filesystem", _list_lustre, _remove_lustre, ("fsx:file-system", "fsx:association"))
MOUNT_TARGET = ResourceKind(
    "EFS mount target", _list_mount_targets, _remove_mount_target, ("elasticfilesystem:mount-target",)
)
EFS = ResourceKind("EFS filesystem", _list_efs, _remove_efs, ("elasticfilesystem:file-system",))
BUCKET = ResourceKind("bucket", _list_buckets, _remove_bucket, ("s3:bucket",))
KEY = ResourceKind("encryption key", _list_keys, _remove_key, ("kms:key",))
