"""Filesystems of EFS, their policies and their mount targets."""

from __future__ import annotations

from infra.targets.aws.rehearse.plugin.calls import delete, read_existence, wait_until_available, wait_until_gone
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    get_if_exists,
    tag_list,
    to_api,
)


def _create_efs(aws: Aws, props: Props, tags: Tags) -> Created:
    filesystem = aws.efs.create_file_system(
        Tags=tag_list(tags), **call_parameters(props, "performanceMode throughputMode encrypted kmsKeyId")
    )
    id_ = filesystem["FileSystemId"]
    return id_, {"dnsName": f"{id_}.efs.{aws.region}.amazonaws.com", "arn": filesystem["FileSystemArn"]}


def _put_lifecycle(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
    policies = [to_api(policy) for policy in props["lifecyclePolicies"]]
    rules = [{_ia(key): value for key, value in policy.items()} for policy in policies]
    aws.efs.put_lifecycle_configuration(FileSystemId=id_, LifecyclePolicies=rules)
    return {}


def _ia(key: str) -> str:
    return "TransitionToIA" if key == "TransitionToIa" else key


def _create_efs_policy(aws: Aws, props: Props, _tags: Tags) -> Created:
    id_ = props["fileSystemId"]
    aws.efs.put_file_system_policy(FileSystemId=id_, Policy=props["policy"])
    return id_, {}


def _efs_policy(aws: Aws, id_: str, _props: Props) -> Props | None:
    return None if get_if_exists(lambda: aws.efs.describe_file_system_policy(FileSystemId=id_)) is None else {}


def _update_efs_policy(aws: Aws, id_: str, news: Props, _tags: Tags) -> Props:
    aws.efs.put_file_system_policy(FileSystemId=id_, Policy=news["policy"])
    return {}


def _create_backup_policy(aws: Aws, props: Props, _tags: Tags) -> Created:
    id_ = props["fileSystemId"]
    aws.efs.put_backup_policy(FileSystemId=id_, BackupPolicy=to_api(props["backupPolicy"]))
    return id_, {}


def _delete_backup_policy(aws: Aws, id_: str, _props: Props) -> None:
    delete_if_exists(lambda: aws.efs.put_backup_policy(FileSystemId=id_, BackupPolicy={"Status": "DISABLED"}))


def _update_efs(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.efs.tag_resource(ResourceId=id_, Tags=tag_list(tags))
    return {}


def _create_target(aws: Aws, props: Props, _tags: Tags) -> Created:
    target = aws.efs.create_mount_target(**call_parameters(props, "fileSystemId subnetId securityGroups"))
    return target["MountTargetId"], {}


def _await_target(aws: Aws, id_: str, _props: Props, _tags: Tags) -> Props:
    def read_row() -> Props:
        row: Props = aws.efs.describe_mount_targets(MountTargetId=id_)["MountTargets"][0]
        return row

    wait_until_available(read_row, "LifeCycleState")
    return {}


def _delete_target(aws: Aws, id_: str, props: Props) -> None:
    delete("efs", "delete_mount_target", "MountTargetId")(aws, id_, props)

    def read_state() -> str | None:
        rows = (get_if_exists(lambda: aws.efs.describe_mount_targets(MountTargetId=id_)) or {}).get("MountTargets")
        return str(rows[0]["LifeCycleState"]) if rows else None

    wait_until_gone(read_state)


KINDS = (
    Kind(
        "aws:efs/fileSystem:FileSystem",
        "encrypted kmsKeyId performanceMode",
        _create_efs,
        delete("efs", "delete_file_system", "FileSystemId"),
        read_existence("efs", "describe_file_systems", "FileSystemId"),
        change="throughputMode lifecyclePolicies",
        update=_update_efs,
        complete=_put_lifecycle,
        computed="dnsName arn",
        tagged=True,
        nested={"lifecyclePolicies": "transitionToIa transitionToPrimaryStorageClass"},
    ),
    Kind(
        "aws:efs/fileSystemPolicy:FileSystemPolicy",
        "fileSystemId!",
        _create_efs_policy,
        # The program retains it: it goes with the filesystem.
        lambda _aws, _id, _props: None,
        _efs_policy,
        change="policy!",
        update=_update_efs_policy,
    ),
    Kind(
        "aws:efs/backupPolicy:BackupPolicy",
        "fileSystemId!",
        _create_backup_policy,
        _delete_backup_policy,
        read_existence("efs", "describe_backup_policy", "FileSystemId"),
        change="backupPolicy!",
        nested={"backupPolicy": "status"},
    ),
    Kind(
        "aws:efs/mountTarget:MountTarget",
        "fileSystemId! subnetId!",
        _create_target,
        _delete_target,
        read_existence("efs", "describe_mount_targets", "MountTargetId"),
        change="securityGroups",
        complete=_await_target,
    ),
)
