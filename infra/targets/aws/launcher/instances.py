"""The cluster's EC2 instances, which are selected only by tag: listing and terminating them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cluster import names
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.node_names import read_node_name
from slurm.power.launcher import LauncherError, Machine, MachineList

# On the controller's instance: groups that are being removed or replaced, separated by blanks. The controller launches
# nothing for these.
CLOSED_TAG = "muster.closed"
# On the controller's instance, too: groups whose launches wait for the end of an upgrade of Slurm.
HELD_TAG = "muster.held"
# Instances in any other state are being terminated.
STATES = ("pending", "running", "stopping", "stopped")
ENDING = (*STATES, "shutting-down")
# The limit of one TerminateInstances call.
_TERMINATE_BATCH = 1000


def list_instances(api: AwsApi, fleet: Fleet, states: Sequence[str] = STATES) -> MachineList:
    """Return the cluster's instances in one of `states`."""
    filters = [
        {"Name": f"tag:{names.CLUSTER}", "Values": [fleet.cluster]},
        {"Name": f"tag:{names.STACK}", "Values": [fleet.stack]},
        {"Name": "instance-state-name", "Values": list(states)},
    ]
    reservations = api.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    raw = [instance for reservation in reservations for instance in reservation["Instances"]]
    tagged = [(instance, {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}) for instance in raw]
    compute = [parse_instance(instance, tags) for instance, tags in tagged if tags.get(names.ROLE) == "compute"]
    controllers = [(instance, tags) for instance, tags in tagged if tags.get(names.ROLE) == names.CONTROLLER]
    return MachineList(
        machines=tuple(sorted(compute, key=lambda machine: (machine.launched, machine.id))),
        controller=controllers[0][0]["InstanceId"] if controllers else "",
        closed=_read_groups(controllers, CLOSED_TAG),
        held=_read_groups(controllers, HELD_TAG),
    )


def parse_instance(raw: Mapping[str, Any], tags: Mapping[str, str]) -> Machine:
    """Return an instance of an EC2 answer as a Machine."""
    launched: datetime = raw["LaunchTime"]
    return Machine(
        id=raw["InstanceId"],
        name=read_node_name(tags, raw["AmiLaunchIndex"]) or "",
        group=tags.get(names.GROUP, ""),
        zone=raw["Placement"]["AvailabilityZone"],
        address=raw.get("PrivateIpAddress", ""),
        launched=launched.timestamp(),
        running=raw["State"]["Name"] in ("pending", "running"),
    )


def terminate(api: AwsApi, machines: Iterable[Machine]) -> list[str]:
    """Terminate machines of this cluster and return their ids; `list_instances` lists no others."""
    ids = sorted({machine.id for machine in machines})
    for first in range(0, len(ids), _TERMINATE_BATCH):
        _terminate_batch(api, ids[first : first + _TERMINATE_BATCH])
    return ids


def _read_groups(controllers: Iterable[tuple[Mapping[str, Any], Mapping[str, str]]], tag: str) -> frozenset[str]:
    return frozenset(group for _, tags in controllers for group in tags.get(tag, "").split())


def _terminate_batch(api: AwsApi, ids: list[str]) -> None:
    try:
        api.call("ec2", "terminate_instances", InstanceIds=ids)
    except LauncherError as error:
        # One id that AWS no longer has makes the whole call fail, so terminate the others one by one.
        if error.fault.kind != "gone":
            raise
        if len(ids) > 1:
            for instance_id in ids:
                _terminate_batch(api, [instance_id])
