"""Launching nodes by name: one RunInstances call for all of them, options in order, complete jobs or nothing.

RunInstances rather than CreateFleet: an option is one type in one zone bought in one way, so a fleet has nothing to
choose; and only RunInstances numbers its machines (which names them, see node_names.py), returns their addresses, and
takes capacity blocks and reservations by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from cluster import names
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet, Interface, LaunchOption
from infra.targets.aws.launcher.host_keys import hand_over
from infra.targets.aws.launcher.instances import parse_instance, terminate
from infra.targets.aws.launcher.node_names import MAX_PER_CALL, NUMBERS_TAG, TAG_MAX_CHARS, write_numbers
from slurm.power.launcher import Fault, LauncherError, LaunchResult, Machine, Shortage, Unit

_TAGGED = ("instance", "volume", "network-interface")


def launch(
    api: AwsApi, fleet: Fleet, options: Sequence[LaunchOption], units: Sequence[Unit], token: str
) -> LaunchResult:
    """Try the options in order until every unit is up.

    A unit starts completely, from a single option and so in a single zone, or not at all: machines of an incomplete
    unit are ended at once. `token` must be new for each attempt, and the same if an attempt is repeated, so nothing
    starts twice.
    """
    result = LaunchResult(missing=list(units))
    for option in options:
        if not result.missing:
            break
        machines, shortage = _launch_from_option(api, fleet, option, result.missing, token)
        if shortage:
            result.shortages.append(shortage)
        whole = [unit for unit in result.missing if all(name in machines for name in unit)]
        result.missing = [unit for unit in result.missing if unit not in whole]
        used = {name for unit in whole for name in unit}
        result.machines |= {name: machine for name, machine in machines.items() if name in used}
        terminate(api, [machine for name, machine in machines.items() if name not in used])
    try:
        hand_over(api, fleet, result.machines)
    except LauncherError:
        # Without its key, a machine would wait for it and fail, at the price of its GPUs.
        terminate(api, result.machines.values())
        raise
    return result


def _launch_from_option(
    api: AwsApi, fleet: Fleet, option: LaunchOption, units: Sequence[Unit], token: str
) -> tuple[dict[str, Machine], Shortage | None]:
    launched: dict[str, Machine] = {}
    try:
        for chunk, least in split_into_calls(units):
            params = build_request(fleet, option, chunk, least=least, token=token)
            answer = api.call("ec2", "run_instances", **params)
            machines = [_parse_machine(raw) for raw in answer["Instances"]]
            launched |= {machine.name: machine for machine in machines}
            if len(machines) < len(chunk):
                return launched, Shortage(option, Fault("shortage", "InsufficientInstanceCapacity"), len(launched))
    except LauncherError as error:
        return launched, Shortage(option, error.fault, len(launched))
    return launched, None


def split_into_calls(units: Sequence[Unit]) -> list[tuple[list[str], int]]:
    """Return the node names of each call, and the minimum number of machines for which it is useful.

    A call has at most MAX_PER_CALL names whose numbers fit a tag, and needs at least the remainder of the unit that it
    begins with.
    """
    calls: list[tuple[list[str], int]] = []
    chunk: list[str] = []
    least = 0
    for unit in units:
        for name in unit:
            if chunk and (len(chunk) == MAX_PER_CALL or len(write_numbers([*chunk, name])) > TAG_MAX_CHARS):
                calls.append((chunk, least or len(chunk)))
                chunk, least = [], 0
            chunk.append(name)
        least = least or len(chunk)
    return [*calls, (chunk, least)] if chunk else calls


def build_request(
    fleet: Fleet, option: LaunchOption, members: Sequence[str], *, least: int, token: str
) -> dict[str, Any]:
    """Return the parameters of one RunInstances call; raise LauncherError if the fleet is of an older version."""
    group = fleet.group(names.group_of(members[0]))
    if not group.interfaces:
        message = f"the fleet has no interfaces for group {group.name}: an older version of muster wrote it"
        raise LauncherError("run_instances", Fault("broken", "OldFleet", message), "run `muster up`")
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
        "NetworkInterfaces": [
            _place_interface(interface, option, group.security_groups, alone=len(group.interfaces) == 1)
            for interface in group.interfaces
        ],
        **_buy(option),
        **({"Placement": {"GroupName": option.placement_group}} if option.placement_group else {}),
    }


def _buy(option: LaunchOption) -> dict[str, Any]:
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
    # Without it a full group of reservations silently falls back to on-demand.
    only = {"CapacityReservationPreference": "capacity-reservations-only"}
    return {"CapacityReservationSpecification": only | target}


def _tags(fleet: Fleet, members: Sequence[str]) -> dict[str, str]:
    group = names.group_of(members[0])
    single = len(members) == 1
    return (
        fleet.tags
        | {names.CLUSTER: fleet.cluster, names.STACK: fleet.stack, names.ROLE: "compute", names.GROUP: group}
        | {"Name": f"muster-{fleet.cluster}-{members[0] if single else group}", NUMBERS_TAG: write_numbers(members)}
        | ({names.NODE: members[0]} if single else {})
    )


def _token(token: str, option: LaunchOption, members: Sequence[str]) -> str:
    """Return the same token for the same request, so that a repeated call returns the first answer."""
    return sha256("|".join([token, option.model_dump_json(), *members]).encode()).hexdigest()


def _place_interface(
    interface: Interface, option: LaunchOption, security_groups: Sequence[str], *, alone: bool
) -> dict[str, Any]:
    """Return an interface in the option's subnet, without a public address.

    EC2 does not support the option for public addresses on a machine with several interfaces, and assigns no public
    address to it (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-instance-addressing.html).
    """
    return {
        "NetworkCardIndex": interface.card,
        "DeviceIndex": interface.device,
        "InterfaceType": interface.kind,
        "SubnetId": option.subnet_id,
        "Groups": list(security_groups),
        "DeleteOnTermination": True,
        **({"AssociatePublicIpAddress": False} if alone else {}),
    }


def _parse_machine(raw: Mapping[str, Any]) -> Machine:
    return parse_instance(raw, {tag["Key"]: tag["Value"] for tag in raw["Tags"]})
