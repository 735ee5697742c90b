"""A cluster for the power-saving tests: a fleet on moto, and a fake slurmctld that records its commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet, FleetGroup, Interface, LaunchOption
from infra.targets.aws.launcher.launcher import AwsLauncher
from slurm.hostlist import expand
from slurm.power.context import Context
from slurm.power.memory import Memory
from slurm.power.slurmctld import Slurmctld
from tests.moto_server import REGION, Moto

TYPE = "p5.48xlarge"
INTERFACES = (Interface(0, 0, "interface"), Interface(0, 1, "efa-only"))
ZONES = ("us-east-1a", "us-east-1b")
DOMAIN = "demo.muster.internal"


@dataclass
class FakeSlurm:
    """A scontrol that answers from a table of node states, and updates the table as slurmctld would."""

    states: dict[str, str] = field(default_factory=dict)
    """State of each node, for example `IDLE+CLOUD+POWERED_DOWN`."""
    reasons: dict[str, str] = field(default_factory=dict)
    reason_time: str = "2026-11-15T10:00:00"
    addresses: dict[str, str] = field(default_factory=dict)
    static: str = "(null)"
    """Value of SuspendExcNodes."""
    resume_timeout_s: int = 1800
    partitions: dict[str, str] = field(default_factory=lambda: {"gpu": "UP"})
    commands: list[list[str]] = field(default_factory=list)
    """Arguments of every command that changes something."""
    when_reconfigured: Callable[[], None] | None = None
    when_updated: Callable[[Sequence[str], str], None] | None = None
    """Called with the nodes and the state of an update."""

    def __call__(self, command: Sequence[str]) -> str:
        arguments = list(command[1:])
        if arguments[:2] == ["show", "node"]:
            return "\n".join(self._line(name) for name in self.states)
        if arguments[:2] == ["show", "partition"]:
            return "\n".join(f"PartitionName={n} Nodes=x State={s}" for n, s in self.partitions.items())
        if arguments[:2] == ["show", "config"]:
            timeout = f"ResumeTimeout           = {self.resume_timeout_s} sec\n"
            return f"{timeout}SuspendExcNodes         = {self.static}\n"
        self.commands.append(arguments)
        if arguments == ["reconfigure"] and self.when_reconfigured:
            self.when_reconfigured()
        if arguments[0] == "update":
            self._update(dict(argument.split("=", 1) for argument in arguments[1:]))
        return ""

    def _line(self, name: str) -> str:
        reason = f" Reason={self.reasons[name]} [slurm@{self.reason_time}]" if self.reasons.get(name) else ""
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
        if self.when_updated:
            self.when_updated(expand(fields["nodename"]), fields["state"])


@dataclass
class Clock:
    """A clock that advances only when `sleep` is called."""

    t: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.t

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.t += seconds


def create_network(aws: Moto) -> tuple[dict[str, str], str]:
    """Create a network and return its subnet ids by zone, and a security group."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(ZONES):
        block = f"10.0.{16 * number}.0/20"
        subnets[zone] = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
    security_group = ec2.create_security_group(GroupName=f"nodes-{vpc}", Description="nodes", VpcId=vpc)["GroupId"]
    return subnets, security_group


def make_fleet(
    aws: Moto, *, purchases: tuple[str, ...] = ("on-demand",), groups: tuple[str, ...] = ("gpu",), **more: Any
) -> Fleet:
    """Create a network, launch templates and a DNS zone, and return the fleet that uses them."""
    ec2 = aws.client("ec2")
    subnets, security_group = create_network(aws)
    zone_id = aws.client("route53").create_hosted_zone(Name=DOMAIN, CallerReference=str(uuid4()))["HostedZone"]["Id"]
    fleet_groups = []
    for group in groups:
        data = {"ImageId": "ami-0123456789abcdef0", "InstanceType": TYPE}
        template = ec2.create_launch_template(LaunchTemplateName=f"{group}-{uuid4()}", LaunchTemplateData=data)[
            "LaunchTemplate"
        ]
        options = tuple(
            LaunchOption(
                purchase=purchase,
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
        fleet_groups.append(
            FleetGroup(name=group, options=options, interfaces=INTERFACES, security_groups=(security_group,))
        )
    fields = {
        "cluster": "demo",
        "stack": "demo",
        "region": REGION,
        "hosted_zone_id": zone_id.rpartition("/")[2],
        "domain": DOMAIN,
        "bundle": "0" * 16,
        "tags": {"owner": "research"},
        "groups": tuple(fleet_groups),
    } | more
    aws.calls.clear()
    return Fleet.model_validate(fields)


@dataclass
class AwsContext(Context):
    """A context with the AWS launcher, whose fleet tests can change."""

    launcher: AwsLauncher


def make_context(fleet: Fleet, folder: Path, slurm: FakeSlurm, clock: Clock) -> AwsContext:
    """Return a context that uses the AWS stub, with its memory and configuration in `folder`."""
    launcher = AwsLauncher(fleet, AwsApi(fleet.region, sleep=clock.sleep, clock=clock.now))
    return AwsContext(launcher, Slurmctld(slurm), Memory(folder / "power"), folder / "slurm", now=clock.now)


def with_retry_s(fleet: Fleet, retry_s: int = 0) -> Fleet:
    """Return the fleet with this time limit for retries."""
    groups = tuple(group.model_copy(update={"retry_s": retry_s}) for group in fleet.groups)
    return fleet.model_copy(update={"groups": groups})


def list_running(aws: Moto) -> list[dict[str, Any]]:
    """Return the running instances, read by the test itself and not by the code under test."""
    answer = aws.client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )
    return [instance for reservation in answer["Reservations"] for instance in reservation["Instances"]]


def read_records(aws: Moto, fleet: Fleet) -> dict[str, str]:
    """Return the address of each node in the DNS zone."""
    answer = aws.client("route53").list_resource_record_sets(HostedZoneId=fleet.hosted_zone_id, MaxItems="300")
    addresses = [record for record in answer["ResourceRecordSets"] if record["Type"] == "A"]
    return {re.sub(rf"\.{DOMAIN}\.?$", "", r["Name"]): r["ResourceRecords"][0]["Value"] for r in addresses}
