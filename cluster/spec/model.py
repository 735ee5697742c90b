"""The fields of a cluster: names, types, limits, defaults, and what a change of each does to a running cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, create_model, field_validator

from cluster.spec.alerts import Alerts
from cluster.spec.base import SpecModel, SpecModelT, field
from cluster.spec.health import Health
from cluster.spec.patterns import MOUNT, Name, UserName
from cluster.spec.slurm_options import SlurmOptions
from cluster.user_ids import FIRST_UID, LAST_UID

Fabric = Literal["tcp", "efa", "infiniband", "roce"]
Purchase = Literal["on-demand", "spot", "reservation", "block"]
# Oldest first: a cluster can only be upgraded to a later one.
SlurmRelease = Literal["24.11", "26.05"]


class Size(SpecModel):
    """The share of this machine that one local node may use."""

    cpus: int = field("CPUs the node sees and Slurm schedules", "replace", default=2, ge=1, le=512)
    memory_mb: int = field("memory limit of the node in MiB", "replace", default=2048, ge=512, le=4_194_304)


class Gpus(SpecModel):
    """The GPUs of one node."""

    count: int = field("GPUs per node", "replace", default=0, ge=0, le=16, examples=[2])
    kind: Literal["real", "simulated"] = field(
        "simulated GPUs can be scheduled but do not compute", "replace", default="simulated"
    )
    type: Name = field("GPU type in Slurm, e.g. h100", "replace", default="h100")


class Machine(SpecModel):
    """Hardware of a node: a size on this machine, or an instance type of the cloud."""

    size: Size | None = field(
        "size of a local node; without it 2 CPUs and 2048 MiB, but 1024 MiB for the login node",
        "replace",
        default=None,
        examples=[{"cpus": 2, "memory_mb": 2048}],
    )
    instance_type: str | None = field("cloud instance type", "replace", default=None, examples=["p5.48xlarge"])


class Login(Machine):
    """The machine that people log in to."""

    enabled: bool = field("a separate login node; without it the controller is the login node", "drain", default=True)
    ssh_port: int | None = field(
        "port of 127.0.0.1 on which the login node's SSH is also published",
        "replace",
        default=None,
        ge=1024,
        le=65535,
        examples=[2222],
    )


class Capacity(SpecModel):
    """How the machines of a group are bought, and what to try if none are available."""

    kind: Purchase = field("purchase option to try first", "replace", default="on-demand")
    reservation: str | None = field(
        "id of a capacity reservation or capacity block, or ARN of a resource group of reservations",
        "replace",
        default=None,
        examples=["cr-0123456789abcdef0"],
    )
    fallback: tuple[Purchase, ...] = field(
        "purchase options to try next, in this order", "safe", default=(), strict=False, examples=[["on-demand"]]
    )
    fallback_types: tuple[str, ...] = field(
        "instance types with the same GPUs to try next, in this order; a reservation is only for `instance_type`",
        "safe",
        default=(),
        strict=False,
        examples=[["g6.16xlarge"]],
    )
    zones: tuple[str, ...] = field(
        "availability zones in the order to try them; by default those of the network",
        "safe",
        default=(),
        strict=False,
        examples=[["us-east-1a"]],
    )
    placement: Literal["auto", "cluster", "none"] = field(
        "place machines close together; auto: if the fabric benefits and the reservation allows it",
        "replace",
        default="auto",
    )
    retry_s: int = field(
        "seconds for which a shortage is retried before it is reported as a failure",
        "safe",
        default=600,
        ge=0,
        le=86400,
    )


class NodeGroup(Machine):
    """A set of identical nodes; becomes one Slurm partition."""

    count: int | None = field("number of nodes that always exist", "drain", default=None, ge=0, le=1024, examples=[2])
    min: int | None = field(
        "nodes that always exist in an autoscaled group", "drain", default=None, ge=0, le=1024, examples=[0]
    )
    max: int | None = field(
        "largest number of nodes of an autoscaled group", "drain", default=None, ge=1, le=1024, examples=[8]
    )
    gpus: Gpus = field("GPUs of each node", "replace", default=Gpus())
    fabric: Fabric = field("network between the nodes", "replace", default="tcp")
    capacity: Capacity = field("how machines are bought", "replace", default=Capacity())
    root_gb: int | None = field(
        "size of each node's root disk in GB; by default 200",
        "replace",
        default=None,
        ge=50,
        le=16384,
        examples=[500],
    )
    image: str | None = field(
        "image of this group's nodes; by default that of the target's section",
        "replace",
        default=None,
        examples=["ami-0123456789abcdef0"],
    )
    ip_bandwidth: bool = field(
        "more IP interfaces on machines with many network cards: faster S3 and Lustre, more addresses used",
        "replace",
        default=False,
    )


class Network(SpecModel):
    """Addresses of the nodes, and what they can reach."""

    cidr: str | None = field(
        "address range of the nodes; by default the first free /24 of 10.88.0.0/16",
        "forbidden",
        default=None,
        examples=["10.88.7.0/24"],
    )
    egress: bool = field("whether nodes can reach the internet (packages, data sets)", "forbidden", default=True)
    vpc_id: str | None = field(
        "an existing VPC to use instead of a new one", "forbidden", default=None, examples=["vpc-0123456789abcdef0"]
    )
    subnet_ids: tuple[str, ...] = field(
        "private subnets of that VPC, one per zone",
        "forbidden",
        default=(),
        strict=False,
        examples=[["subnet-0123456789abcdef0"]],
    )
    flow_logs: bool = field("log accepted and rejected connections", "safe", default=True)


class Storage(SpecModel):
    """A shared filesystem."""

    kind: Literal["volume", "fsx-lustre", "efs", "nfs", "existing"] = field(
        "kind of filesystem", "forbidden", default="volume"
    )
    mount: str = field("mount point on every node", "forbidden", default="/shared", pattern=MOUNT)
    size_gb: int | None = field(
        "capacity in GB, for kinds that have one", "safe", default=None, ge=1, le=1_000_000, examples=[1200]
    )
    throughput: int | None = field(
        "MB/s per TiB of a Lustre filesystem", "safe", default=None, ge=125, le=1000, examples=[250]
    )
    efa: bool = field("Lustre clients use EFA on machines that have it", "forbidden", default=False)
    s3: str | None = field(
        "bucket and prefix whose objects appear as files", "forbidden", default=None, examples=["s3://my-data/corpus"]
    )
    id: str | None = field("id of an existing filesystem", "forbidden", default=None, examples=["fs-0123456789abcdef0"])
    backup_days: int | None = field(
        "days for which daily backups are kept: 1 to 90 for FSx for Lustre, 35 for EFS; by default there are none",
        "safe",
        default=None,
        ge=1,
        le=90,
        examples=[14],
    )
    from_backup: str | None = field(
        "backup of FSx for Lustre that a new filesystem is created from; ignored once it exists",
        "safe",
        default=None,
        examples=["backup-0123456789abcdef0"],
    )
    keep: bool = field(
        "whether teardown keeps it (and reports its cost) or deletes it with the cluster", "safe", default=True
    )


class User(SpecModel):
    """A person who may log in and run jobs."""

    uid: int = field("numeric id, the same on every node", "forbidden", ge=FIRST_UID, le=LAST_UID, examples=[2001])
    # YAML has only lists, and strict mode would reject a list for a tuple.
    ssh_keys: tuple[str, ...] = field(
        "public SSH keys of the user",
        "safe",
        default=(),
        strict=False,
        examples=[["ssh-ed25519 AAAA... alice@laptop"]],
    )
    admin: bool = field("may use sudo and administer Slurm", "safe", default=False)


class Software(SpecModel):
    """Pinned versions."""

    slurm: SlurmRelease = field("Slurm release", "upgrade", default="26.05")
    training_lock: str = field(
        "lock file of the Python training environment", "safe", default="trainer/requirements.lock"
    )


class Budget(SpecModel):
    """Limits on cost; ignored by targets without prices."""

    usd_per_hour: float | None = field(
        "highest cost of the cluster per hour", "safe", default=None, gt=0, examples=[10.0]
    )
    usd_per_month: float | None = field(
        "highest cost of the cluster in a calendar month; above it idle GPU nodes are stopped",
        "safe",
        default=None,
        gt=0,
        examples=[5000.0],
    )
    usd_total: float | None = field("highest total cost of the cluster", "safe", default=None, gt=0, examples=[200.0])
    notify: tuple[str, ...] = field(
        "e-mail addresses that are notified at 50, 80 and 100 %",
        "safe",
        default=(),
        strict=False,
        examples=[["ops@example.com"]],
    )


class ClusterSpec(SpecModel):
    """The description of a cluster.

    A target may have its own section, under its name. This class keeps the section unchecked; `with_sections`
    returns the model that also checks it.
    """

    model_config = ConfigDict(extra="allow")

    name: Name = field("cluster name", "forbidden", examples=["demo"])
    target: str = field("where the machines come from", "forbidden")
    groups: dict[Name, NodeGroup] = field(
        "node groups by name; each becomes one Slurm partition",
        "drain",
        min_length=1,
        examples=[{"gpu": {"count": 2}}],
    )
    controller: Machine = field("the machine that runs slurmctld and slurmdbd", "replace", default=Machine())
    login: Login = field("the machine that people log in to", "replace", default=Login())
    network: Network = field("addresses of the nodes, and what they can reach", "forbidden", default=Network())
    storage: dict[Name, Storage] = field(
        "shared filesystems by name; `shared` holds environments and jobs, `home` (optional) the users' homes",
        "forbidden",
        default={"shared": Storage()},
    )
    users: dict[UserName, User] = field(
        "people who may run jobs; the first by name runs the ready gate and is the user of `ssh` and `submit`",
        "safe",
        min_length=1,
        default={"muster": User(uid=2000)},
    )
    slurm: SlurmOptions = field("scheduler settings", "safe", default=SlurmOptions())
    software: Software = field("pinned versions", "replace", default=Software())
    tags: dict[str, str] = field(
        "labels on everything that is created", "safe", default={}, examples=[{"owner": "research"}]
    )
    budget: Budget = field("limits on cost", "safe", default=Budget())
    alerts: Alerts = field("messages to people", "safe", default=Alerts())
    health: Health = field("health checks of the nodes", "safe", default=Health())

    @field_validator("groups", "storage", "users", "tags")
    @classmethod
    def _by_name(cls, mapping: dict[str, Any]) -> dict[str, Any]:
        """Sort by key, as Pulumi does; the order in the file has no meaning."""
        return dict(sorted(mapping.items()))

    def section(self, name: str, model: type[SpecModelT]) -> SpecModelT | None:
        """Return the section called `name`, or None if the spec has none."""
        value = getattr(self, name, None)
        return value if value is None or isinstance(value, model) else model.model_validate_json(json.dumps(value))


def with_sections(
    targets: Sequence[str], sections: Mapping[str, type[SpecModel]], example: str | None = None
) -> type[ClusterSpec]:
    """Return the model of a stack file: `target` is one of `targets`, and only their sections are allowed.

    `example` is the target that error messages suggest, by default the last.
    """
    target_name = Literal[*targets]  # type: ignore[valid-type]
    fields: dict[str, Any] = {
        "target": (target_name, field("where the machines come from", "forbidden", examples=[example or targets[-1]])),
        **{name: _section_field(name, section) for name, section in sections.items()},
    }
    return create_model("ClusterSpec", __base__=_CheckedSpec, **fields)


class _CheckedSpec(ClusterSpec):
    """A spec that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid")


def _section_field(name: str, section: type[SpecModel]) -> tuple[Any, Any]:
    required = {key: info for key, info in section.model_fields.items() if info.is_required()}
    example = {key: info.examples[0] for key, info in required.items() if info.examples}
    description = f"{(section.__doc__ or '').rstrip('.')}, for target {name}"
    return section | None, field(description, "forbidden", default=None, examples=[example])
