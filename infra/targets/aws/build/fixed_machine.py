"""A machine that stays: its address belongs to a network interface of its own and survives the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster import names
from cluster.inventory import Role
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.plan import launch_template, machines, security


@dataclass(frozen=True)
class Start:
    """What a machine is started with; known only after its address is."""

    instance_type: str
    image: pulumi.Input[str]
    profile: aws.iam.InstanceProfile
    key_arn: pulumi.Input[str]
    user_data: pulumi.Input[str]
    """Base64."""
    after: tuple[pulumi.Resource, ...]


class FixedMachine(Part):
    address: pulumi.Output[str]
    interface_id: pulumi.Output[str]
    instance_id: pulumi.Output[str]

    def __init__(self, kind: str, role: Role, site: Site, network: Network, groups: SecurityGroups) -> None:
        super().__init__(kind, site)
        self.role = role
        interface = aws.ec2.NetworkInterface(
            role,
            subnet_id=network.subnets[network.first],
            security_groups=[groups.ids[security.CONTROL]],
            description=f"{role} of muster cluster {site.cluster}",
            tags=self._tags(),
            opts=self.child(),
        )
        self.address, self.interface_id = interface.private_ip, interface.id
        self.zone = network.zones[network.first]

    def start(self, start: Start) -> None:
        """Another image or another bundle is no reason to lose a running machine; one that is made anew takes them.
        Two machines cannot have one interface: the old one goes first."""
        instance = aws.ec2.Instance(
            self.role,
            ami=start.image,
            instance_type=start.instance_type,
            iam_instance_profile=start.profile.name,
            primary_network_interface={"network_interface_id": self.interface_id},
            user_data_base64=start.user_data,
            metadata_options=launch_template.METADATA,
            root_block_device=self._root(start.key_arn),
            ebs_optimized=True,
            maintenance_options=machines.RECOVERY,
            instance_initiated_shutdown_behavior="stop",
            tags=self._tags(),
            opts=self.child(*start.after, delete_before_replace=True, ignore_changes=["ami", "userDataBase64"]),
        )
        self.instance_id = instance.id
        self.finish()

    def finish(self) -> None:
        self.register_outputs({"address": self.address, "instance_id": self.instance_id})

    def _tags(self) -> dict[str, str]:
        return names.node_labels(self.role, self.role, None) | self.named(self.role)

    def _root(self, key_arn: pulumi.Input[str]) -> dict[str, Any]:
        """Tags here and not for all volumes of the machine: those of the controller's state are its own. The provider
        adds the cluster's, and would take them for a change where they stand here, too."""
        return {
            "volume_type": "gp3",
            "volume_size": machines.FIXED_ROOT_GB,
            "encrypted": True,
            "kms_key_id": key_arn,
            "delete_on_termination": True,
            "tags": self._tags(),
        }
