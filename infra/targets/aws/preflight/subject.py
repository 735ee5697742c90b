"""The input of every pre-flight check: the spec, the account, and the instances that the cluster already runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cluster import names
from cluster.catalog.instances import all_types
from cluster.spec import ClusterSpec
from infra.targets.aws.plan.quotas import Quota, quota_of
from infra.targets.aws.preflight.account import Account, Identity


@dataclass(frozen=True)
class RunningInstance:
    """An instance of this cluster; the quota and capacity that it uses need not be available again."""

    instance_type: str
    spot: bool
    subnet: str
    addresses: int
    reservation: str
    zone: str = ""


@dataclass(frozen=True)
class Subject:
    """What a check is about."""

    spec: ClusterSpec
    account: Account
    identity: Identity
    running: tuple[RunningInstance, ...] = ()
    exists: bool = False
    """Whether this stack has created the cluster, or a part of it."""
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Images by kind that a check has chosen instead of AWS's newest."""

    @property
    def region(self) -> str:
        return self.account.region

    def client(self, service: str) -> Any:
        return self.account.client(service)

    def count_vcpus(self, quota: Quota) -> int:
        """Return the vCPUs of a quota that the cluster already uses."""
        catalog = all_types()
        types = ((catalog.get(instance.instance_type), instance.spot) for instance in self.running)
        return sum(
            machine.vcpus
            for machine, spot in types
            if machine and quota_of(machine, "spot" if spot else "on-demand") == quota
        )


def list_running_instances(ec2: Any, cluster: str) -> Iterator[RunningInstance]:
    """Yield the instances of a cluster that are starting or running."""
    filters = [
        {"Name": f"tag:{names.CLUSTER}", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            yield from map(_to_running_instance, reservation["Instances"])


def _to_running_instance(instance: dict[str, Any]) -> RunningInstance:
    interfaces = instance.get("NetworkInterfaces", [])
    return RunningInstance(
        instance_type=instance["InstanceType"],
        spot=instance.get("InstanceLifecycle") == "spot",
        subnet=instance.get("SubnetId", ""),
        addresses=sum(bool(interface.get("PrivateIpAddress")) for interface in interfaces),
        reservation=instance.get("CapacityReservationId", ""),
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
    )
