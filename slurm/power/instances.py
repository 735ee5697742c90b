"""The cluster's machines as EC2 knows them, found by tag and never otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cluster import names
from cluster.inventory import Fleet
from slurm.power.cloud import Cloud
from slurm.power.node_names import name_of

# On the controller's instance: groups that are being removed, separated by blanks. Nothing is launched for these.
CLOSED = "muster.closed"
# A machine in any other state is on its way out.
STATES = ("pending", "running", "stopping", "stopped")
ENDING = (*STATES, "shutting-down")


@dataclass(frozen=True)
class Instance:
    id: str
    name: str
    """Empty for one that carries our tags but has no name: nobody can use it."""
    group: str
    zone: str
    address: str
    launched: float
    running: bool


@dataclass(frozen=True)
class Found:
    machines: tuple[Instance, ...]
    """Compute nodes, oldest first."""
    controller: str = ""
    """Its instance id."""
    closed: frozenset[str] = frozenset()

    def named(self) -> dict[str, Instance]:
        """By name; of two with one name the one that runs, and of these the older, which Slurm got to know first."""
        best_last = sorted(self.machines, key=lambda machine: (machine.running, -machine.launched))
        return {machine.name: machine for machine in best_last if machine.name}


def find(cloud: Cloud, fleet: Fleet, states: Sequence[str] = STATES) -> Found:
    filters = [
        {"Name": f"tag:{names.CLUSTER}", "Values": [fleet.cluster]},
        {"Name": f"tag:{names.STACK}", "Values": [fleet.stack]},
        {"Name": "instance-state-name", "Values": list(states)},
    ]
    reservations = cloud.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    raw = [instance for reservation in reservations for instance in reservation["Instances"]]
    tagged = [(instance, {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}) for instance in raw]
    compute = [instance_of(one, tags) for one, tags in tagged if tags.get(names.ROLE) == "compute"]
    controllers = [(one, tags) for one, tags in tagged if tags.get(names.ROLE) == names.CONTROLLER]
    return Found(
        machines=tuple(sorted(compute, key=lambda machine: (machine.launched, machine.id))),
        controller=controllers[0][0]["InstanceId"] if controllers else "",
        closed=frozenset(group for _, tags in controllers for group in tags.get(CLOSED, "").split()),
    )


def instance_of(raw: Mapping[str, Any], tags: Mapping[str, str]) -> Instance:
    launched: datetime = raw["LaunchTime"]
    return Instance(
        id=raw["InstanceId"],
        name=name_of(tags, raw["AmiLaunchIndex"]) or "",
        group=tags.get(names.GROUP, ""),
        zone=raw["Placement"]["AvailabilityZone"],
        address=raw.get("PrivateIpAddress", ""),
        launched=launched.timestamp(),
        running=raw["State"]["Name"] in ("pending", "running"),
    )
