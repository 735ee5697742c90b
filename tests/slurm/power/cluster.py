"""A cluster's cloud side on moto: network, templates, zone, fleet; and a slurmctld that keeps what it is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet, FleetGroup, LaunchOption
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.hostlist import expand
from slurm.power.context import Context
from slurm.power.memory import Memory
from slurm.power.slurmctld import Slurmctld
from tests.moto_server import REGION, Moto

TYPE = "p5.48xlarge"
ZONES = ("us-east-1a", "us-east-1b")
DOMAIN = "demo.muster.internal"


@dataclass
class FakeSlurm:
    """scontrol's answers from a table of states, which updates change the way slurmctld does."""

    states: dict[str, str] = field(default_factory=dict)
    """Such as `IDLE+CLOUD+POWERED_DOWN`."""
    reasons: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    static: str = "(null)"
    resume_timeout_s: int = 1800
    partitions: dict[str, str] = field(default_factory=lambda: {"gpu": "UP"})
    told: list[list[str]] = field(default_factory=list)
    when_reconfigured: Callable[[], None] | None = None

    def __call__(self, command: Sequence[str]) -> str:
        words = list(command[1:])
        if words[:2] == ["show", "node"]:
            return "\n".join(self._line(name) for name in self.states)
        if words[:2] == ["show", "partition"]:
            return "\n".join(f"PartitionName={n} Nodes=x State={s}" for n, s in self.partitions.items())
        if words[:2] == ["show", "config"]:
            timeout = f"ResumeTimeout           = {self.resume_timeout_s} sec\n"
            return f"{timeout}SuspendExcNodes         = {self.static}\n"
        self.told.append(words)
        if words == ["reconfigure"] and self.when_reconfigured:
            self.when_reconfigured()
        if words[0] == "update":
            self._update(dict(word.split("=", 1) for word in words[1:]))
        return ""

    def _line(self, name: str) -> str:
        reason = f" Reason={self.reasons[name]} [slurm@2026-11-15T10:00:00]" if self.reasons.get(name) else ""
        address = self.addresses.get(name, name)
        return f"NodeName={name} NodeAddr={address} CPUTot=192 Gres=gpu:h100:8 State={self.states[name]}{reason}"

    def _update(self, fields: dict[str, str]) -> None:
        if "partitionname" in fields:
            self.partitions[fields["partitionname"]] = fields["state"]
            return
        for name in expand(fields["nodename"]):
            if fields["state"] == "DOWN":
                self.states[name] = "DOWN+CLOUD"
                self.reasons[name] = fields["reason"]
            elif fields["state"] == "POWER_DOWN":
                self.states[name] = "IDLE+CLOUD+POWERED_DOWN"
                self.reasons.pop(name, None)
            elif fields["state"] == "POWER_UP":
                self.states[name] = "IDLE+CLOUD+POWERING_UP"


@dataclass
class Clock:
    t: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.t

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.t += seconds


def network(aws: Moto) -> dict[str, str]:
    """Subnet ids by zone."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = {}
    for number, zone in enumerate(ZONES):
        block = f"10.0.{16 * number}.0/20"
        made[zone] = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
    return made


def make_fleet(
    aws: Moto, *, purchases: tuple[str, ...] = ("on-demand",), groups: tuple[str, ...] = ("gpu",), **more: Any
) -> Fleet:
    ec2, subnets = aws.client("ec2"), network(aws)
    zone_id = aws.client("route53").create_hosted_zone(Name=DOMAIN, CallerReference=str(uuid4()))["HostedZone"]["Id"]
    made = []
    for group in groups:
        data = {
            "ImageId": "ami-0123456789abcdef0",
            "InstanceType": TYPE,
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0,
                    "NetworkCardIndex": 0,
                    "InterfaceType": "interface",
                    "AssociatePublicIpAddress": False,
                },
                {"DeviceIndex": 1, "InterfaceType": "efa-only"},
            ],
        }
        template = ec2.create_launch_template(LaunchTemplateName=f"{group}-{uuid4()}", LaunchTemplateData=data)[
            "LaunchTemplate"
        ]
        options = tuple(
            LaunchOption(
                purchase=purchase,  # type: ignore[arg-type]
                zone=zone,
                subnet_id=subnets[zone],
                instance_type=TYPE,
                launch_template_id=template["LaunchTemplateId"],
                launch_template_version="1",
                reservation="cr-0123456789abcdef0" if purchase in ("reservation", "block") else None,
            )
            for purchase in purchases
            for zone in ZONES
        )
        made.append(FleetGroup(name=group, options=options))
    fields = {
        "cluster": "demo",
        "stack": "demo",
        "region": REGION,
        "hosted_zone_id": zone_id.rpartition("/")[2],
        "domain": DOMAIN,
        "bundle": "0" * 16,
        "tags": {"owner": "research"},
        "groups": tuple(made),
    } | more
    aws.calls.clear()
    return Fleet.model_validate(fields)


def make_context(fleet: Fleet, folder: Path, slurm: FakeSlurm, clock: Clock) -> Context:
    api = AwsApi(fleet.region, sleep=clock.sleep, clock=clock.now)
    launcher = AwsLauncher(fleet, api)
    return Context(launcher, Slurmctld(slurm), Memory(folder / "power"), folder / "slurm", now=clock.now)


def impatient(fleet: Fleet, retry_s: int = 0) -> Fleet:
    """A shortage is said at once, or after so long."""
    groups = tuple(group.model_copy(update={"retry_s": retry_s}) for group in fleet.groups)
    return fleet.model_copy(update={"groups": groups})


def machines(aws: Moto) -> list[dict[str, Any]]:
    """What lives, asked by the test itself."""
    answer = aws.client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )
    return [one for reservation in answer["Reservations"] for one in reservation["Instances"]]


def records(aws: Moto, fleet: Fleet) -> dict[str, str]:
    answer = aws.client("route53").list_resource_record_sets(HostedZoneId=fleet.hosted_zone_id, MaxItems="300")
    found = [one for one in answer["ResourceRecordSets"] if one["Type"] == "A"]
    return {re.sub(rf"\.{DOMAIN}\.?$", "", r["Name"]): r["ResourceRecords"][0]["Value"] for r in found}
