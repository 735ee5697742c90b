"""The controller: a machine that stays, and a volume with the queue and the accounts that outlives it."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from cluster import names
from infra.targets.aws.build.fixed_machine import FixedMachine
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Site
from infra.targets.aws.build.security_groups import SecurityGroups
from infra.targets.aws.plan.machines import STATE_GB

_STATE_DEVICE = "/dev/sdf"


class Controller(FixedMachine):
    volume_id: pulumi.Output[str]

    def __init__(self, site: Site, network: Network, groups: SecurityGroups, key_arn: pulumi.Input[str]) -> None:
        super().__init__("Controller", "controller", site, network, groups)
        volume = aws.ebs.Volume(
            "state",
            availability_zone=self.zone,
            size=STATE_GB,
            type="gp3",
            encrypted=True,
            kms_key_id=key_arn,
            tags={names.ROLE: names.CONTROLLER} | self.named("state"),
            opts=self.child(),
        )
        self.volume_id = volume.id

    def finish(self) -> None:
        """Slurm writes its state at every change: a machine is stopped before its volume is taken."""
        aws.ec2.VolumeAttachment(
            "state",
            device_name=_STATE_DEVICE,
            volume_id=self.volume_id,
            instance_id=self.instance_id,
            stop_instance_before_detaching=True,
            opts=self.child(delete_before_replace=True),
        )
        super().finish()
