"""Shared filesystems: FSx for Lustre, EFS, or existing ones. Those with `keep: true` outlive the cluster."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster.inventory import Filesystem
from cluster.spec import Storage
from infra.targets.aws import names
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.plan import iam, security, storage

Mount = dict[str, object]
"""What nodes mount, as fields of Filesystem."""


class FileSystems(AwsComponent):
    """The filesystems that a spec names under `storage`."""

    mounts: pulumi.Output[list[Mount]]
    """All filesystems, `/shared` first."""
    prerequisites: list[pulumi.Resource]
    """Resources without which a filesystem cannot be mounted."""

    def __init__(self, site: Site, network: Network, groups: SecurityGroups, key_arn: pulumi.Input[str]) -> None:
        super().__init__("FileSystems", site)
        self._network, self._groups, self._key_arn = network, groups, key_arn
        self.prerequisites = []
        ordered = sorted(site.spec.storage.items(), key=lambda item: item[1].mount != "/shared")
        self.mounts = pulumi.Output.all(*(self._create(name, entry) for name, entry in ordered))
        self.register_outputs({})

    def _create(self, name: str, entry: Storage) -> pulumi.Output[Mount]:
        if entry.kind == "fsx-lustre":
            return self._create_lustre(name, entry)
        if entry.kind == "efs":
            return self._create_efs(name, entry)
        return self.site.resolved.filesystems[entry.id or ""].apply(lambda fields: {**fields, "mount": entry.mount})

    def _create_lustre(self, name: str, entry: Storage) -> pulumi.Output[Mount]:
        plan = storage.lustre(entry)
        # FSx checks the security group's rules when it is created, so they have to exist.
        filesystem = aws.fsx.LustreFileSystem(
            name,
            subnet_ids=self._network.subnets[self._network.first_place],
            security_group_ids=[self._groups.ids[security.STORAGE]],
            kms_key_id=self._key_arn,
            tags=self._tags(name, entry),
            # A filesystem that exists must not be replaced when `from_backup` is set or removed.
            opts=self._options(entry, *self._groups.rules, ignore_changes=["backupId"]),
            **plan.file_system,
        )
        self.prerequisites.append(filesystem)
        if plan.link:
            link = aws.fsx.DataRepositoryAssociation(
                name,
                file_system_id=filesystem.id,
                tags=self._tags(name, entry),
                opts=self._options(entry),
                **plan.link,
            )
            self.prerequisites.append(link)
        return pulumi.Output.all(host=filesystem.dns_name, export=filesystem.mount_name).apply(
            lambda fields: {"kind": "lustre", "mount": entry.mount, **fields, "efa": entry.efa}
        )

    def _create_efs(self, name: str, entry: Storage) -> pulumi.Output[Mount]:
        filesystem = aws.efs.FileSystem(
            name, kms_key_id=self._key_arn, tags=self._tags(name, entry), opts=self._options(entry), **storage.efs()
        )
        # It stays with a filesystem that is kept, and goes with every other.
        policy = aws.efs.FileSystemPolicy(
            name,
            file_system_id=filesystem.id,
            policy=filesystem.arn.apply(lambda arn: json.dumps(iam.file_system_policy(arn))),
            opts=self.child_options(retain_on_delete=True),
        )
        self.prerequisites.append(policy)
        if entry.backup_days:
            aws.efs.BackupPolicy(
                name,
                file_system_id=filesystem.id,
                backup_policy={"status": "ENABLED"},
                opts=self.child_options(),
            )
        for label, subnet in self._network.subnets.items():
            target = aws.efs.MountTarget(
                f"{name}-{label}",
                file_system_id=filesystem.id,
                subnet_id=subnet,
                security_groups=[self._groups.ids[security.STORAGE]],
                opts=self.child_options(),
            )
            self.prerequisites.append(target)
        host: pulumi.Output[str] = filesystem.dns_name
        return host.apply(lambda name: {"kind": "efs", "mount": entry.mount, "host": name, "export": "/"})

    def _tags(self, name: str, entry: Storage) -> dict[str, str]:
        return self.name_tag(name) | names.keep_tag(entry.keep)

    def _options(self, entry: Storage, *after: pulumi.Resource, **options: Any) -> pulumi.ResourceOptions:
        return self.child_options(*after, protect=entry.keep, retain_on_delete=entry.keep, **options)


def parse_mounts(mounts: list[Mount]) -> tuple[Filesystem, ...]:
    """Return the resolved mounts as the inventory's model."""
    return tuple(Filesystem.model_validate(fields) for fields in mounts)
