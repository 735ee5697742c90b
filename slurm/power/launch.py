"""Launching nodes by name: one RunInstances call for all of them, the options in order, whole jobs or nothing.

RunInstances and not CreateFleet: an option is one type in one zone bought in one way, so a fleet has nothing to choose,
and only RunInstances numbers its machines, which is what names them (node_names.py), answers with their addresses, and
takes capacity blocks and reservations by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cluster import names
from cluster.inventory import Fleet, FleetGroup, LaunchOption
from slurm.power.cloud import Answer, Cloud
from slurm.power.errors import Fault, Refused
from slurm.power.instances import Instance, instance_of
from slurm.power.node_names import LONGEST, NUMBERS, tag_of
from slurm.power.terminate import terminate

# Larger requests take EC2 longer than two of half the size; ParallelCluster asks for as many at once.
MOST = 500
_TAGGED = ("instance", "volume", "network-interface")
# What DescribeLaunchTemplateVersions says of an interface and RunInstances takes.
_INTERFACE = ("DeviceIndex", "NetworkCardIndex", "InterfaceType", "Groups", "DeleteOnTermination", "Description")

Unit = tuple[str, ...]
"""Names that are of use only together: the nodes of one job."""


@dataclass(frozen=True)
class Shortage:
    """An option that did not give all that was asked of it."""

    option: LaunchOption
    fault: Fault
    got: int = 0

    def __str__(self) -> str:
        nothing = self.fault.kind == "shortage" and "Capacity" in self.fault.code and not self.got
        what = "none" if nothing else self.fault.code
        only = f" ({self.got} only)" if self.got else ""
        return f"{self.option.zone} {self.option.purchase} {what}{only}"


@dataclass
class Launched:
    nodes: dict[str, Instance] = field(default_factory=dict)
    failed: list[Shortage] = field(default_factory=list)
    missing: list[Unit] = field(default_factory=list)


def launch(cloud: Cloud, fleet: Fleet, options: Sequence[LaunchOption], units: Sequence[Unit], token: str) -> Launched:
    """Tries the options in the order given. A unit comes up whole, out of one option and so in one zone, or not at all:
    the machines of one that cannot be completed are ended at once.

    `token` must be new for each attempt of the caller's and the same when it repeats one: then nothing starts twice."""
    result = Launched(missing=list(units))
    for option in options:
        if not result.missing:
            break
        got, shortage = _from_option(cloud, fleet, option, result.missing, token)
        if shortage:
            result.failed.append(shortage)
        whole = [unit for unit in result.missing if all(name in got for name in unit)]
        result.missing = [unit for unit in result.missing if unit not in whole]
        used = {name for unit in whole for name in unit}
        result.nodes |= {name: machine for name, machine in got.items() if name in used}
        terminate(cloud, [machine for name, machine in got.items() if name not in used])
    return result


def group_named(fleet: Fleet, name: str) -> FleetGroup:
    return next(group for group in fleet.groups if group.name == name)


def _from_option(
    cloud: Cloud, fleet: Fleet, option: LaunchOption, units: Sequence[Unit], token: str
) -> tuple[dict[str, Instance], Shortage | None]:
    got: dict[str, Instance] = {}
    try:
        interfaces = _interfaces(cloud, option)
        for chunk, least in chunks(units):
            asked = request(fleet, option, chunk, least=least, interfaces=interfaces, token=token)
            answer = cloud.call("ec2", "run_instances", **asked)
            machines = [_machine(raw) for raw in answer["Instances"]]
            got |= {machine.name: machine for machine in machines}
            if len(machines) < len(chunk):
                return got, Shortage(option, Fault("shortage", "InsufficientInstanceCapacity"), len(got))
    except Refused as refused:
        return got, Shortage(option, refused.fault, len(got))
    return got, None


def chunks(units: Sequence[Unit]) -> list[tuple[list[str], int]]:
    """(names, how many of them at least) of each call: at most MOST, their numbers short enough for a tag, and at least
    the rest of the unit that the call begins with."""
    made: list[tuple[list[str], int]] = []
    chunk: list[str] = []
    least = 0
    for unit in units:
        for name in unit:
            if chunk and (len(chunk) == MOST or len(tag_of([*chunk, name])) > LONGEST):
                made.append((chunk, least or len(chunk)))
                chunk, least = [], 0
            chunk.append(name)
        least = least or len(chunk)
    return [*made, (chunk, least)] if chunk else made


def request(  # noqa: PLR0913
    fleet: Fleet, option: LaunchOption, members: Sequence[str], *, least: int, interfaces: Sequence[Answer], token: str
) -> dict[str, Any]:
    """The parameters of one RunInstances call."""
    template = {"LaunchTemplateId": option.launch_template_id, "Version": option.launch_template_version}
    kinds = (*_TAGGED, "spot-instances-request") if option.purchase == "spot" else _TAGGED
    tags = [{"Key": key, "Value": value} for key, value in sorted(_tags(fleet, members).items())]
    return {
        "LaunchTemplate": template,
        "InstanceType": option.instance_type,
        "MinCount": least,
        "MaxCount": len(members),
        "ClientToken": _token(token, option, members),
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
        **({"NetworkInterfaces": list(interfaces)} if interfaces else {"SubnetId": option.subnet_id}),
        **_bought(option),
        **({"Placement": {"GroupName": option.placement_group}} if option.placement_group else {}),
    }


def _bought(option: LaunchOption) -> dict[str, Any]:
    if option.purchase == "spot":
        ends = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": ends}}
    if not option.reservation:
        return {}
    key = "CapacityReservationId" if option.reservation.startswith("cr-") else "CapacityReservationResourceGroupArn"
    target = {"CapacityReservationTarget": {key: option.reservation}}
    if option.purchase == "block":
        market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
        return market | {"CapacityReservationSpecification": target}
    # Without it a full group of reservations quietly becomes on demand.
    only = {"CapacityReservationPreference": "capacity-reservations-only"}
    return {"CapacityReservationSpecification": only | target}


def _tags(fleet: Fleet, members: Sequence[str]) -> dict[str, str]:
    group = members[0].rpartition("-")[0]
    one = len(members) == 1
    return (
        fleet.tags
        | {names.CLUSTER: fleet.cluster, names.STACK: fleet.stack, names.ROLE: "compute", names.GROUP: group}
        | {"Name": f"muster-{fleet.cluster}-{members[0] if one else group}", NUMBERS: tag_of(members)}
        | ({names.NODE: members[0]} if one else {})
    )


def _token(token: str, option: LaunchOption, members: Sequence[str]) -> str:
    """The same question has the same token, so that a repeated call gets the first one's answer."""
    return sha256("|".join([token, option.model_dump_json(), *members]).encode()).hexdigest()


def _interfaces(cloud: Cloud, option: LaunchOption) -> list[Answer]:
    """The template's interfaces with the option's subnet in each: RunInstances refuses a subnet beside interfaces."""
    versions = cloud.call(
        "ec2",
        "describe_launch_template_versions",
        LaunchTemplateId=option.launch_template_id,
        Versions=[option.launch_template_version],
    )["LaunchTemplateVersions"]
    data = versions[0]["LaunchTemplateData"]
    return [_interface(one, option.subnet_id) for one in data.get("NetworkInterfaces", [])]


def _interface(raw: Mapping[str, Any], subnet: str) -> Answer:
    kept = {key: raw[key] for key in _INTERFACE if key in raw}
    public = {"AssociatePublicIpAddress": False} if raw.get("AssociatePublicIpAddress") is False else {}
    return kept | public | {"SubnetId": subnet}


def _machine(raw: Mapping[str, Any]) -> Instance:
    return instance_of(raw, {tag["Key"]: tag["Value"] for tag in raw["Tags"]})
