"""Controller and login: machines whose address belongs to a network interface that outlives the machine itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster import names
from cluster.inventory import Role
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.plan import launch_template, machines, security

_STATE_DEVICE = "/dev/sdf"


@dataclass(frozen=True)
class StartArgs:
    """What a machine is started with; available only after all addresses are."""

    instance_type: str
    image: pulumi.Input[str]
    profile: aws.iam.InstanceProfile
    key_arn: pulumi.Input[str]
    user_data: pulumi.Input[str]
    """In base64."""
    after: tuple[pulumi.Resource, ...]


class PermanentMachine(AwsComponent):
    """A machine that exists as long as the cluster: its interface is created first, the machine by `start`."""

    address: pulumi.Output[str]
    interface_id: pulumi.Output[str]

    def __init__(self, kind: str, role: Role, site: Site, network: Network, groups: SecurityGroups) -> None:
        super().__init__(kind, site)
        self.role = role
        interface = aws.ec2.NetworkInterface(
            role,
            subnet_id=network.subnets[network.first_place],
            security_groups=[groups.ids[security.CONTROL]],
            description=f"{role} of muster cluster {site.cluster}",
            tags=self._tags(),
            opts=self.child_options(),
        )
        self.address, self.interface_id = interface.private_ip, interface.id

    def start(self, args: StartArgs) -> pulumi.Output[str]:
        """Create the machine and return its instance id.

        A new image or bundle does not replace a running machine; only a new machine uses them. An interface can
        belong to one machine only, so the old machine is deleted before a replacement is created.
        """
        instance = aws.ec2.Instance(
            self.role,
            ami=args.image,
            instance_type=args.instance_type,
            iam_instance_profile=args.profile.name,
            primary_network_interface={"network_interface_id": self.interface_id},
            user_data_base64=args.user_data,
            metadata_options=launch_template.METADATA,
            root_block_device=self._root_volume(args.key_arn),
            ebs_optimized=True,
            maintenance_options=machines.RECOVERY,
            # A stopped machine would keep its root disk, and a restarted one would cost again.
            instance_initiated_shutdown_behavior="terminate" if self.site.aws.ends_at else "stop",
            tags=self._tags(),
            opts=self.child_options(*args.after, delete_before_replace=True, ignore_changes=["ami", "userDataBase64"]),
        )
        self._attach_volumes(instance.id)
        self.register_outputs({"address": self.address, "instance_id": instance.id})
        return instance.id  # type: ignore[no-any-return]

    def _attach_volumes(self, instance_id: pulumi.Output[str]) -> None:
        """Attach further volumes; most machines have none."""

    def _tags(self) -> dict[str, str]:
        return names.node_labels(self.role, self.role, None) | self.name_tag(self.role)

    def _root_volume(self, key_arn: pulumi.Input[str]) -> dict[str, Any]:
        """Return the root volume with its own tags.

        `volume_tags` would also overwrite the tags of the state volume. The provider adds the cluster's tags and would
        report a change if they were repeated here.
        """
        return {
            "volume_type": "gp3",
            "volume_size": machines.FIXED_ROOT_GB,
            "encrypted": True,
            "kms_key_id": key_arn,
            "delete_on_termination": True,
            "tags": self._tags(),
        }


class Controller(PermanentMachine):
    """The controller, and the volume with queue and accounting that outlives the machine."""

    volume_id: pulumi.Output[str]

    def __init__(self, site: Site, network: Network, groups: SecurityGroups, key_arn: pulumi.Input[str]) -> None:
        super().__init__("Controller", "controller", site, network, groups)
        volume = aws.ebs.Volume(
            "state",
            availability_zone=network.zones[network.first_place],
            size=machines.STATE_GB,
            type="gp3",
            encrypted=True,
            kms_key_id=key_arn,
            snapshot_id=site.aws.state_snapshot,
            tags={names.ROLE: names.CONTROLLER} | self.name_tag("state"),
            # A volume that exists must not be replaced when `state_snapshot` is set or removed.
            opts=self.child_options(ignore_changes=["snapshotId"]),
        )
        self.volume_id = volume.id

    def _attach_volumes(self, instance_id: pulumi.Output[str]) -> None:
        """Attach the state volume; the machine is stopped before detaching, because Slurm writes all the time."""
        aws.ec2.VolumeAttachment(
            "state",
            device_name=_STATE_DEVICE,
            volume_id=self.volume_id,
            instance_id=instance_id,
            stop_instance_before_detaching=True,
            opts=self.child_options(delete_before_replace=True),
        )


class Login(PermanentMachine):
    """The machine that people log in to."""

    def __init__(self, site: Site, network: Network, groups: SecurityGroups) -> None:
        super().__init__("Login", "login", site, network, groups)


@dataclass(frozen=True)
class PermanentMachines:
    """The permanent machines of a cluster, with addresses, not yet started."""

    controller: Controller
    login: Login | None

    @property
    def by_role(self) -> dict[Role, PermanentMachine]:
        """The machines by role, which is also their node name."""
        login: Mapping[Role, PermanentMachine] = {"login": self.login} if self.login else {}
        return {"controller": self.controller, **login}

    @property
    def interface_ids(self) -> dict[Role, pulumi.Output[str]]:
        return {role: machine.interface_id for role, machine in self.by_role.items()}

    @property
    def addresses(self) -> pulumi.Output[dict[str, str]]:
        return pulumi.Output.all(**{role: machine.address for role, machine in self.by_role.items()})
