"""Backups by AWS: none unless the spec asks for them, and what a restore creates."""

from __future__ import annotations

import json
from typing import Any

from tests.infra.targets.aws.build.capture import STACKS, CapturedResource, capture, example, named, of_type
from tests.infra.targets.aws.specs import spec

LUSTRE, EFS_POLICY = "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:efs/backupPolicy:BackupPolicy"
SNAPSHOTS, VOLUME, KEY = "aws:dlm/lifecyclePolicy:LifecyclePolicy", "aws:ebs/volume:Volume", "aws:kms/key:Key"
ROLE_POLICY, ROLE = "aws:iam/rolePolicy:RolePolicy", "aws:iam/role:Role"


def build(*, storage: dict[str, Any] | None = None, **section: Any) -> tuple[CapturedResource, ...]:
    aws = {"region": "us-east-1", **section}
    return capture(spec(aws=aws, storage={"shared": storage or {"kind": "efs", "keep": False}}), "demo")


def test_without_the_settings_nothing_is_added() -> None:
    for stack in set(STACKS) - {"aws-full"}:
        assert of_type(example(stack), EFS_POLICY, SNAPSHOTS) == []
        assert {lustre.props["automaticBackupRetentionDays"] for lustre in of_type(example(stack), LUSTRE)} <= {0}
        assert named(example(stack), VOLUME, "state").props.get("snapshotId") is None


def test_fsx_keeps_daily_backups_of_lustre() -> None:
    (lustre,) = of_type(build(storage={"kind": "fsx-lustre", "backup_days": 30}), LUSTRE)
    assert (lustre.props["automaticBackupRetentionDays"], lustre.props["copyTagsToBackups"]) == (30, True)
    assert lustre.props.get("backupId") is None


def test_lustre_from_a_backup_is_not_replaced_when_the_setting_is_removed() -> None:
    (lustre,) = of_type(build(storage={"kind": "fsx-lustre", "from_backup": "backup-0123456789abcdef0"}), LUSTRE)
    (without,) = of_type(build(storage={"kind": "fsx-lustre"}), LUSTRE)
    assert (lustre.props["backupId"], without.props.get("backupId")) == ("backup-0123456789abcdef0", None)
    assert lustre.options["ignoreChanges"] == without.options["ignoreChanges"] == ["backupId"]


def test_efs_has_automatic_backups() -> None:
    (policy,) = of_type(build(storage={"kind": "efs", "backup_days": 35}), EFS_POLICY)
    assert policy.props == {"fileSystemId": "FileSystem/shared", "backupPolicy": {"status": "ENABLED"}}


def test_only_the_state_volume_is_copied_and_copies_outlive_the_cluster() -> None:
    resources = build(state_backup_days=14)
    policy = named(resources, SNAPSHOTS, "state").props["policyDetails"]
    (schedule,) = policy["schedules"]
    assert policy["resourceTypes"] == ["VOLUME"]
    tagged = [r.label for r in resources if r.props.get("tags", {}).items() >= policy["targetTags"].items()]
    assert sorted(tagged) == [f"{SNAPSHOTS} state", f"{VOLUME} state"]
    assert (schedule["retainRule"], schedule["createRule"]["interval"]) == ({"count": 14}, 24)
    assert (schedule["copyTags"], schedule["tagsToAdd"]) == (True, {"muster.keep": "true"})
    # Copies are encrypted with the cluster's key.
    assert [key.options["retainOnDelete"] for key in of_type(resources, KEY)] == [True]
    assert [key.options["retainOnDelete"] for key in of_type(build(), KEY)] == [False]


def test_the_role_of_snapshots_can_only_copy_and_delete_those_of_the_cluster() -> None:
    resources = build(state_backup_days=14)
    trust = json.loads(named(resources, ROLE, "snapshots").props["assumeRolePolicy"])["Statement"]
    assert [statement["Principal"] for statement in trust] == [{"Service": "dlm.amazonaws.com"}]
    statements = json.loads(named(resources, ROLE_POLICY, "snapshots").props["policy"])["Statement"]
    by_sid = {statement["Sid"]: statement for statement in statements}
    own = {"StringEquals": {"aws:ResourceTag/muster.cluster": "demo"}}
    assert (by_sid["Copy"]["Condition"], by_sid["DeleteCopies"]["Condition"]) == (own, own)
    assert all("*" not in s["Resource"] for sid, s in by_sid.items() if sid != "Look")


def test_a_volume_from_a_snapshot_is_not_replaced_when_the_setting_is_removed() -> None:
    volume = named(build(state_snapshot="snap-0123456789abcdef0"), VOLUME, "state")
    without = named(build(), VOLUME, "state")
    assert volume.props["snapshotId"] == "snap-0123456789abcdef0"
    assert volume.options["ignoreChanges"] == without.options["ignoreChanges"] == ["snapshotId"]
