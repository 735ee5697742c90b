"""The parts of IAM policies: a statement, and the scope, which is what the statements of a cluster refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster import names
from cluster.inventory import Role as NodeRole

CLUSTER_TAG = f"aws:ResourceTag/{names.CLUSTER}"
ROLE_TAG = f"aws:ResourceTag/{names.ROLE}"
REQUESTED_TAG = f"aws:RequestTag/{names.CLUSTER}"
REQUESTED_ROLE = f"aws:RequestTag/{names.ROLE}"

Conditions = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Statement:
    """A statement of a policy. `reason` says why no narrower resource is possible; required with resource `*`."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Conditions = field(default_factory=dict)
    reason: str = ""
    effect: Literal["Allow", "Deny"] = "Allow"

    def __post_init__(self) -> None:
        if self.effect == "Allow" and "*" in self.resources and not self.reason:
            raise ValueError(f"{self.sid}: resource * needs a reason. Fix: name the resources, or give `reason`")

    def as_json(self) -> dict[str, Any]:
        """Return the statement in the format of a policy document."""
        statement: dict[str, Any] = {
            "Sid": self.sid,
            "Effect": self.effect,
            "Action": sorted(self.actions),
            "Resource": sorted(self.resources),
        }
        return statement | ({"Condition": self.conditions} if self.conditions else {})


@dataclass(frozen=True)
class Scope:
    """What the policies refer to: the account, the cluster and its resources."""

    partition: str
    region: str
    account: str
    cluster: str
    bucket_arn: str
    key_arn: str
    zone_id: str = ""
    vpc_id: str = ""
    """VPC with endpoints of S3 and Systems Manager, to which credentials are bound; empty in an existing VPC."""
    subnet_ids: Sequence[str] = ()
    images: Sequence[str] = ()
    """Images of compute nodes."""
    instance_types: Sequence[str] = ()
    """Types of compute nodes, with the fallbacks."""
    security_groups: Sequence[str] = ()
    """Security groups of compute nodes."""
    reservations: Sequence[str] = ()
    """Ids of capacity reservations and blocks, or ARNs of resource groups of reservations."""
    spot: bool = False
    """Whether any group may use spot instances."""
    budget: str | None = None
    """Name of the budget."""
    alerts: bool = False
    """Whether the controller sends alerts to a webhook."""
    jobs: bool = False
    """Whether there is a role for the users' programs."""
    hooks: Mapping[NodeRole, Sequence[str]] = field(default_factory=dict)
    """Objects with the spec's own programs, as `bucket/key`, by the role whose machines run them."""

    def ec2(self, kind: str, name: str = "*") -> str:
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:{kind}/{name}"

    def iam(self, kind: str, name: str) -> str:
        return f"arn:{self.partition}:iam::{self.account}:{kind}/{name}"

    def parameter(self, path: str) -> str:
        return f"arn:{self.partition}:ssm:{self.region}:{self.account}:parameter{path}"

    def if_called_by(self, *services: str) -> Conditions:
        """Return the condition that these AWS services use the key, not the role itself."""
        hosts = [f"{service}.{self.region}.amazonaws.com" for service in services]
        return {"StringEquals": {"kms:ViaService": hosts if len(hosts) > 1 else hosts[0]}}

    @property
    def if_own_tag(self) -> Conditions:
        """The condition that a resource has the cluster's tag."""
        return {"StringEquals": {CLUSTER_TAG: self.cluster}}

    @property
    def if_launched_as_compute(self) -> Conditions:
        """The condition that a new resource gets the tags of the cluster's compute nodes."""
        return {"StringEquals": {REQUESTED_TAG: self.cluster, REQUESTED_ROLE: "compute"}}

    @property
    def if_from_template(self) -> Conditions:
        """The condition that a launch uses a launch template; which one, its own tags decide."""
        return {"ArnLike": {"ec2:LaunchTemplate": self.ec2("launch-template")}}

    @property
    def new_resources(self) -> tuple[str, ...]:
        """What a launch creates besides the instance itself."""
        return tuple(self.ec2(kind) for kind in ("volume", "network-interface", "spot-instances-request"))

    @property
    def cluster_resources(self) -> tuple[str, ...]:
        """What a launch uses of the cluster, all of it tagged."""
        groups = (self.ec2("security-group", id_) for id_ in self.security_groups)
        return (self.ec2("launch-template"), self.ec2("placement-group"), *groups)

    @property
    def shared_resources(self) -> tuple[str, ...]:
        """What a launch uses that may belong to others: subnets and reservations."""
        return (
            *(self.ec2("subnet", subnet) for subnet in self.subnet_ids),
            *(self.ec2("capacity-reservation", id_) for id_ in self.reservations if id_.startswith("cr-")),
        )

    @property
    def image_arns(self) -> tuple[str, ...]:
        """The images of the cluster's compute nodes."""
        return tuple(f"arn:{self.partition}:ec2:{self.region}::image/{image}" for image in self.images)

    @property
    def reservation_groups(self) -> tuple[str, ...]:
        """The reservations that are resource groups."""
        return tuple(arn for arn in self.reservations if not arn.startswith("cr-"))
