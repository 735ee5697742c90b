"""The section `aws` of a spec, and the capabilities of this target."""

from __future__ import annotations

from typing import Annotated

from cluster.spec import ClusterSpec
from cluster.spec.model import SpecModel, ValueDescription, field
from infra.targets.target import Capabilities

SECTION = "aws"
POLICY_EXAMPLE = "arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"
REGION = r"^[a-z]{2}(-[a-z]+)+-[0-9]$"
CAPABILITIES = Capabilities(
    machine=frozenset({"instance_type"}),
    fabrics=frozenset({"tcp", "efa"}),
    gpus=frozenset({"real"}),
    storage=frozenset({"fsx-lustre", "efs", "existing"}),
    fields=frozenset(
        {
            *("groups.capacity", "groups.ip_bandwidth", "groups.root_gb"),
            *("network.vpc_id", "network.subnet_ids", "network.flow_logs"),
            *("storage.throughput", "storage.efa", "storage.s3", "storage.id"),
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
    kms_key: str | None = field(
        "ARN of the key that encrypts disks, files and secrets; by default one of the cluster's own",
        "forbidden",
        default=None,
        examples=["arn:aws:kms:us-east-1:123456789012:key/0123abcd-..."],
    )


def aws_section(spec: ClusterSpec) -> Aws | None:
    """Return the section `aws` of a spec."""
    return spec.section(SECTION, Aws)


def region_of(spec: ClusterSpec) -> str:
    """Return the region that a spec names; empty if it has no section `aws`."""
    section = aws_section(spec)
    return section.region if section else ""
