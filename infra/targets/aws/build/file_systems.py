"""Shared filesystems: FSx for Lustre, EFS, or one that exists. Kept ones outlive the cluster, and teardown says so."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from cluster.inventory import Filesystem
from cluster.spec import Storage
from infra.targets.aws import names
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.plan import security, storage


class FileSystems(Part):
    mounted: pulumi.Output[list[dict[str, object]]]
    """What nodes mount, as fields of Filesystem; `/shared` first."""

    def __init__(self, site: Site, network: Network, groups: SecurityGroups, key_arn: pulumi.Input[str]) -> None:
        super().__init__("FileSystems", site)
        self._network, self._groups, self._key_arn = network, groups, key_arn
        self.waiting: list[pulumi.Resource] = []
        """Until these exist a name cannot be mounted."""
        ordered = sorted(site.spec.storage.items(), key=lambda item: item[1].mount != "/shared")
        self.mounted = pulumi.Output.all(*(self._one(name, one) for name, one in ordered))
        self.register_outputs({})

    def _one(self, name: str, one: Storage) -> pulumi.Output[dict[str, object]]:
        if one.kind == "fsx-lustre":
            return self._lustre(name, one)
        if one.kind == "efs":
            return self._efs(name, one)
        return self._existing(one)

    def _lustre(self, name: str, one: Storage) -> pulumi.Output[dict[str, object]]:
        plan = storage.lustre(one)
        # Size and throughput may grow in place; the rules must be there before FSx looks at them.
        made = aws.fsx.LustreFileSystem(
            name,
            subnet_ids=self._network.subnets[self._network.first],
            security_group_ids=[self._groups.ids[security.STORAGE]],
            kms_key_id=self._key_arn,
            tags=self._tags(name, one),
            opts=self._kept(one, *self._groups.rules),
            **plan.file_system,
        )
        self.waiting.append(made)
        if plan.link:
            link = aws.fsx.DataRepositoryAssociation(
                name, file_system_id=made.id, tags=self._tags(name, one), opts=self._kept(one), **plan.link
            )
            self.waiting.append(link)
        return pulumi.Output.all(made.dns_name, made.mount_name).apply(
            lambda known: {"kind": "lustre", "mount": one.mount, "host": known[0], "export": known[1], "efa": one.efa}
        )

    def _efs(self, name: str, one: Storage) -> pulumi.Output[dict[str, object]]:
        made = aws.efs.FileSystem(
            name, kms_key_id=self._key_arn, tags=self._tags(name, one), opts=self._kept(one), **storage.efs()
        )
        for label, subnet in self._network.subnets.items():
            target = aws.efs.MountTarget(
                f"{name}-{label}",
                file_system_id=made.id,
                subnet_id=subnet,
                security_groups=[self._groups.ids[security.STORAGE]],
                opts=self.child(),
            )
            self.waiting.append(target)
        host: pulumi.Output[str] = made.dns_name
        return host.apply(lambda known: {"kind": "efs", "mount": one.mount, "host": known, "export": "/"})

    def _existing(self, one: Storage) -> pulumi.Output[dict[str, object]]:
        return self.site.resolved.filesystems[one.id or ""].apply(lambda known: {**known, "mount": one.mount})

    def _tags(self, name: str, one: Storage) -> dict[str, str]:
        return self.named(name) | names.kept(one.keep)

    def _kept(self, one: Storage, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return self.child(*after, protect=one.keep, retain_on_delete=one.keep)


def filesystems(mounted: list[dict[str, object]]) -> tuple[Filesystem, ...]:
    return tuple(Filesystem.model_validate(one) for one in mounted)
