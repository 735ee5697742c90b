"""The section `aws` of a spec, and the capabilities of this target."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel, ValueDescription, field
from cluster.spec.patterns import Name
from infra.targets.target import Capabilities

SECTION = "aws"
POLICY_EXAMPLE = "arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"
OBJECT = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[\w!.*'()/-]+$"
REGION = r"^[a-z]{2}(-[a-z]+)+-[0-9]$"
# YAML reads it as text; it would turn 2026-11-18T01:00:00Z into a time of its own.
END_FORMAT = "%Y-%m-%d %H:%M UTC"
CAPABILITIES = Capabilities(
    machine=frozenset({"instance_type"}),
    fabrics=frozenset({"tcp", "efa"}),
    gpus=frozenset({"real"}),
    storage=frozenset({"fsx-lustre", "efs", "existing"}),
    fields=frozenset(
        {
            *("groups.capacity", "groups.image", "groups.ip_bandwidth", "groups.root_gb"),
            *("network.vpc_id", "network.subnet_ids", "network.flow_logs"),
            *("storage.throughput", "storage.efa", "storage.s3", "storage.id"),
            *("storage.backup_days", "storage.from_backup"),
            "budget.notify",
        }
    ),
)


class RolePolicies(SpecModel):
    """Managed policies that muster attaches to the roles of machines, besides what they need themselves."""

    controller: tuple[str, ...] = field(
        "ARNs of policies for root on the controller", "safe", default=(), strict=False, examples=[[POLICY_EXAMPLE]]
    )
    login: tuple[str, ...] = field(
        "ARNs of policies for root on the login node", "safe", default=(), strict=False, examples=[[POLICY_EXAMPLE]]
    )
    compute: tuple[str, ...] = field(
        "ARNs of policies for root on compute nodes", "safe", default=(), strict=False, examples=[[POLICY_EXAMPLE]]
    )
    jobs: tuple[str, ...] = field(
        "ARNs of policies of a separate role, whose credentials all users get on compute and login nodes",
        "safe",
        default=(),
        strict=False,
        examples=[["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"]],
    )


class Hook(SpecModel):
    """A program of your own that root runs on machines while they are set up."""

    when: Literal["start", "configured"] = field(
        "start: before the set-up; configured: after it, before the node runs jobs", "safe", default="configured"
    )
    script: Annotated[str, ValueDescription("an object in S3, s3:// and a bucket and a key")] = field(
        "the program, in S3 in the cluster's region", "safe", pattern=OBJECT, examples=["s3://my-tools/agent.sh"]
    )
    sha256: Annotated[str, ValueDescription("64 hexadecimal digits, as `sha256sum` prints them")] = field(
        "SHA-256 of the program; another program is not run",
        "safe",
        pattern=r"^[0-9a-f]{64}$",
        examples=["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"],
    )
    args: tuple[str, ...] = field("its arguments", "safe", default=(), strict=False, examples=[["--verbose"]])
    roles: tuple[Literal["controller", "login", "compute"], ...] = field(
        "machines that run it", "safe", default=("controller", "login", "compute"), strict=False, min_length=1
    )
    timeout_s: int = field("seconds after which it counts as failed", "safe", default=600, ge=1, le=3600)


class Aws(SpecModel):
    """Region, images, encryption key, and limits and policies of roles."""

    region: Annotated[str, ValueDescription("an AWS region, such as us-east-1")] = field(
        "AWS region", "forbidden", pattern=REGION, examples=["us-east-1"]
    )
    zones: tuple[str, ...] = field(
        "availability zones of the private subnets; by default one that offers every instance type",
        "forbidden",
        default=(),
        strict=False,
        examples=[["us-east-1a"]],
    )
    ami: str | None = field(
        "image of GPU nodes; by default AWS's deep learning image, looked up once and kept",
        "replace",
        default=None,
        examples=["ami-0123456789abcdef0"],
    )
    plain_ami: str | None = field(
        "image of controller, login and groups without GPUs; by default Ubuntu 22.04, looked up once and kept",
        "replace",
        default=None,
        examples=["ami-0123456789abcdef1"],
    )
    permissions_boundary: str | None = field(
        "ARN of the permissions boundary for every role that muster creates",
        "safe",
        default=None,
        examples=["arn:aws:iam::123456789012:policy/boundary"],
    )
    policies: RolePolicies = field("managed policies for the roles of machines", "safe", default=RolePolicies())
    hooks: dict[Name, Hook] = field(
        "programs of your own by name, which machines run in the order of the names when they are set up",
        "safe",
        default={},
        examples=[{"agent": {"script": "s3://my-tools/agent.sh", "sha256": "ba7816bf..."}}],
    )
    state_backup_days: int | None = field(
        "days for which daily snapshots of queue and accounting are kept, even after teardown; by default none",
        "safe",
        default=None,
        ge=1,
        le=365,
        examples=[14],
    )
    state_snapshot: str | None = field(
        "snapshot with queue and accounting that a new cluster starts with; ignored once the cluster exists",
        "safe",
        default=None,
        examples=["snap-0123456789abcdef0"],
    )
    ends_at: Annotated[str | None, ValueDescription("a time as YYYY-MM-DD HH:MM UTC")] = field(
        "time at which every machine of the cluster ends itself, even if nobody removes the cluster; by default never",
        "forbidden",
        default=None,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2} UTC$",
        examples=["2030-01-31 18:00 UTC"],
    )
    kms_key: str | None = field(
        "ARN of the key that encrypts disks, files and secrets; by default one of the cluster's own",
        "forbidden",
        default=None,
        examples=["arn:aws:kms:us-east-1:123456789012:key/0123abcd-..."],
    )


def aws_section(spec: ClusterSpec) -> Aws | None:
    """Return the section `aws` of a spec."""
    return spec.section(SECTION, Aws)


def read_end(section: Aws) -> datetime | None:
    """Return when the machines end themselves; None if never. Raise ValueError if it is no time of the calendar."""
    return datetime.strptime(section.ends_at, END_FORMAT).replace(tzinfo=UTC) if section.ends_at else None


def region_of(spec: ClusterSpec) -> str:
    """Return the region that a spec names; empty if it has no section `aws`."""
    section = aws_section(spec)
    return section.region if section else ""
