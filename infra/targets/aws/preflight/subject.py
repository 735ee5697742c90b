"""What every check of the pre-flight is given: the spec, the account, and what of the cluster runs already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cluster import names
from cluster.catalog.instances import all_types
from cluster.spec import ClusterSpec
from infra.targets.aws.plan.quotas import Quota, quota_of
from infra.targets.aws.preflight.account import Account, Identity


@dataclass(frozen=True)
class Running:
    """A machine of this cluster: what it holds is not asked for a second time."""

    instance_type: str
    spot: bool
    subnet: str
    addresses: int
    reservation: str


@dataclass(frozen=True)
class Subject:
    spec: ClusterSpec
    account: Account
    identity: Identity
    running: tuple[Running, ...] = ()
    made: bool = False
    """Whether this stack has made it, or a part of it."""

    @property
    def region(self) -> str:
        return self.account.region

    def client(self, service: str) -> Any:
        return self.account.client(service)

    def holds(self, quota: Quota) -> int:
        """vCPUs that the cluster has of a quota."""
        known = all_types()
        types = ((known.get(one.instance_type), one.spot) for one in self.running)
        return sum(
            found.vcpus for found, spot in types if found and quota_of(found, "spot" if spot else "on-demand") == quota
        )


def running(ec2: Any, cluster: str) -> Iterator[Running]:
    mine = [
        {"Name": f"tag:{names.CLUSTER}", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=mine):
        for reservation in page["Reservations"]:
            yield from map(_running, reservation["Instances"])


def _running(instance: dict[str, Any]) -> Running:
    interfaces = instance.get("NetworkInterfaces", [])
    return Running(
        instance_type=instance["InstanceType"],
        spot=instance.get("InstanceLifecycle") == "spot",
        subnet=instance.get("SubnetId", ""),
        addresses=sum(bool(one.get("PrivateIpAddress")) for one in interfaces),
        reservation=instance.get("CapacityReservationId", ""),
    )
