"""What the controller may do to launch, describe and terminate compute nodes, and nothing else.

IAM has no condition for the user data or the number of machines of a launch: whoever has the controller's credentials
can start compute nodes with a program of their own. These have the role of compute nodes, no other.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.targets.aws import names as aws_names
from infra.targets.aws.plan.policy import CLUSTER_TAG, ROLE_TAG, Scope, Statement

SPOT_ROLE = "aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
FOR_AWS_RESOURCE = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
_DESCRIBE = ("ec2:DescribeInstances", "ec2:DescribeInstanceTopology")

# What EBS requires to create an encrypted volume, besides a grant for AWS's own resources.
# https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
DISK_KEY = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


def allow_launches(scope: Scope) -> Iterator[Statement]:
    """Yield the permission to launch compute nodes: of the cluster's types, from its templates, with its tags.

    A template is required, because only its own tags show that it is the cluster's; the image must be the template's
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/use-launch-templates-to-control-launching-instances.html).
    """
    run = ("ec2:RunInstances",)
    as_compute = scope.if_launched_as_compute["StringEquals"]
    of_our_types = {"StringEquals": as_compute | {"ec2:InstanceType": sorted(scope.instance_types)}}
    yield Statement("LaunchNodes", run, (scope.ec2("instance"),), of_our_types | scope.if_from_template)
    yield Statement("LaunchNew", run, scope.new_resources, scope.if_launched_as_compute)
    yield Statement("LaunchFromOurs", run, scope.cluster_resources, scope.if_own_tag)
    yield Statement("LaunchInto", run, scope.shared_resources)
    of_template = {"Bool": {"ec2:IsLaunchTemplateResource": "true"}}
    yield Statement("LaunchImage", run, scope.image_arns, scope.if_from_template | of_template)
    if scope.reservation_groups:
        reason = "a group of reservations is requested by its ARN, but allowed by the reservations in it"
        yield Statement("LaunchIntoPool", run, (scope.ec2("capacity-reservation"),), reason=reason)
    at_launch = {"StringEquals": {"ec2:CreateAction": "RunInstances"} | as_compute}
    yield Statement("TagAtLaunch", ("ec2:CreateTags",), (scope.ec2("instance"), *scope.new_resources), at_launch)


def allow_managing_nodes(scope: Scope) -> Iterator[Statement]:
    """Yield the permissions to terminate and describe nodes, and what launching them needs in other services."""
    compute_nodes = {"StringEquals": {CLUSTER_TAG: scope.cluster, ROLE_TAG: "compute"}}
    yield Statement("EndNodes", ("ec2:TerminateInstances",), (scope.ec2("instance"),), compute_nodes)
    yield Statement("Look", _DESCRIBE, ("*",), reason="EC2 cannot restrict Describe calls by resource or tag")
    compute_role = scope.iam("role", aws_names.prefixed(scope.cluster, "compute"))
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    yield Statement("PassComputeRole", ("iam:PassRole",), (compute_role,), to_ec2)
    yield Statement("EncryptDisks", DISK_KEY, (scope.key_arn,), scope.if_called_by("ec2"))
    yield Statement("EncryptDisksGrant", ("kms:CreateGrant",), (scope.key_arn,), FOR_AWS_RESOURCE)
    if scope.spot:
        spot_role = scope.iam("role", SPOT_ROLE)
        yield Statement("FirstSpot", ("iam:CreateServiceLinkedRole",), (spot_role,))
