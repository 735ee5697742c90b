"""Who may do what: one policy document per role, as few rights as AWS can express, each wildcard with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster import names
from cluster.inventory import Role as NodeRole
from infra.targets.aws import names as aws_names
from infra.targets.aws.node import parameters

Role = Literal["controller", "login", "compute", "budget", "flow-logs"]
NODE_ROLES: tuple[NodeRole, ...] = ("controller", "login", "compute")
TRUSTED: dict[Role, str] = {
    "controller": "ec2.amazonaws.com",
    "login": "ec2.amazonaws.com",
    "compute": "ec2.amazonaws.com",
    "budget": "budgets.amazonaws.com",
    "flow-logs": "vpc-flow-logs.amazonaws.com",
}
_SPOT_ROLE = "aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
_CLUSTER_TAG = f"aws:ResourceTag/{names.CLUSTER}"
_ROLE_TAG = f"aws:ResourceTag/{names.ROLE}"
_REQUESTED_TAG = f"aws:RequestTag/{names.CLUSTER}"

# What EBS wants of whoever makes an encrypted volume, beside a grant that is bound to AWS's own resources.
# https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
DISK_KEY = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)

Conditions = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Statement:
    """`reason` says why no finer resource is named; required where one of them is `*`."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Conditions = field(default_factory=dict)
    reason: str = ""
    effect: Literal["Allow", "Deny"] = "Allow"

    def __post_init__(self) -> None:
        if self.effect == "Allow" and "*" in self.resources and not self.reason:
            raise ValueError(
                f"{self.sid}: resource * needs a reason. Fix: name what AWS can name, or say why it cannot"
            )

    def as_json(self) -> dict[str, Any]:
        text: dict[str, Any] = {
            "Sid": self.sid,
            "Effect": self.effect,
            "Action": sorted(self.actions),
            "Resource": sorted(self.resources),
        }
        return text | ({"Condition": self.conditions} if self.conditions else {})


@dataclass(frozen=True)
class Scope:
    """What the policies name: this account, this cluster, and what was made for it."""

    partition: str
    region: str
    account: str
    cluster: str
    bucket_arn: str
    key_arn: str
    zone_id: str = ""
    subnet_ids: Sequence[str] = ()
    images: Sequence[str] = ()
    reservations: Sequence[str] = ()
    """Ids of capacity reservations and blocks, or ARNs of resource groups of them."""
    spot: bool = False
    """Whether any group may be bought as spot."""
    budget: str | None = None

    def ec2(self, kind: str, name: str = "*") -> str:
        return f"arn:{self.partition}:ec2:{self.region}:{self.account}:{kind}/{name}"

    def iam(self, kind: str, name: str) -> str:
        return f"arn:{self.partition}:iam::{self.account}:{kind}/{name}"

    def parameter(self, path: str) -> str:
        return f"arn:{self.partition}:ssm:{self.region}:{self.account}:parameter{path}"

    @property
    def mine(self) -> Conditions:
        return {"StringEquals": {_CLUSTER_TAG: self.cluster}}


def document(statements: Iterable[Statement]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [one.as_json() for one in statements]}


def trust(role: Role, account: str) -> dict[str, Any]:
    """Only the service itself; another account's budget or flow log is none of ours."""
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": TRUSTED[role]},
    }
    if role not in NODE_ROLES:
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": account}}
    return {"Version": "2012-10-17", "Statement": [statement]}


def controller(scope: Scope) -> tuple[Statement, ...]:
    return (
        *_node(scope, "controller"),
        Statement("Database", ("ssm:GetParameter",), (scope.parameter(parameters.db_password(scope.cluster)),)),
        Statement("Fleet", ("s3:GetObject",), _objects(scope, parameters.FLEET)),
        Statement("Packages", ("s3:PutObject",), _objects(scope, parameters.packages("*"))),
        Statement(
            "EncryptPackages",
            ("kms:GenerateDataKey",),
            (scope.key_arn,),
            {"StringEquals": {"kms:ViaService": f"s3.{scope.region}.amazonaws.com"}},
        ),
        Statement("ReadReports", ("ssm:GetParameters",), (scope.parameter(_reports(scope)),)),
        *_launch(scope),
        *_names_of_nodes(scope),
        *((_spending(scope),) if scope.budget else ()),
    )


def login(scope: Scope) -> tuple[Statement, ...]:
    return _node(scope, "login")


def compute(scope: Scope) -> tuple[Statement, ...]:
    return _node(scope, "compute")


def budget(scope: Scope) -> tuple[Statement, ...]:
    """Beyond the budget AWS takes the right to launch away from the controller; it may do nothing else."""
    denial = scope.iam("policy", aws_names.prefixed(scope.cluster, "no-launch"))
    return (
        Statement(
            "StopLaunching",
            ("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
            (scope.iam("role", aws_names.prefixed(scope.cluster, "controller")),),
            {"ArnEquals": {"iam:PolicyARN": denial}},
        ),
    )


def no_launch(partition: str, region: str, account: str) -> tuple[Statement, ...]:
    """What is attached to the controller when the budget is spent."""
    instances = f"arn:{partition}:ec2:{region}:{account}:instance/*"
    return (Statement("BudgetIsSpent", ("ec2:RunInstances",), (instances,), effect="Deny"),)


def flow_logs(log_group_arn: str) -> tuple[Statement, ...]:
    return (
        Statement(
            "Write",
            ("logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"),
            (f"{log_group_arn}:*",),
        ),
    )


def key_policy(partition: str, region: str, account: str, cluster: str) -> dict[str, Any]:
    """The account decides by IAM; beside it only the cluster's log groups, and the service that launches spot."""
    spot = {"ArnEquals": {"aws:PrincipalArn": f"arn:{partition}:iam::{account}:role/{_SPOT_ROLE}"}}
    logs = f"arn:{partition}:logs:{region}:{account}:log-group:/{aws_names.prefixed(cluster)}/*"
    return {
        "Version": "2012-10-17",
        "Statement": [
            _grant("Account", {"AWS": f"arn:{partition}:iam::{account}:root"}, ["kms:*"]),
            _grant(
                "Logs",
                {"Service": f"logs.{region}.amazonaws.com"},
                [
                    "kms:Decrypt",
                    "kms:DescribeKey",
                    "kms:Encrypt",
                    "kms:GenerateDataKey",
                    "kms:ReEncryptFrom",
                    "kms:ReEncryptTo",
                ],
                {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": logs}},
            ),
            # A role that may not exist yet cannot be a principal; its ARN can be compared.
            _grant("Spot", {"AWS": "*"}, list(DISK_KEY), spot),
            _grant(
                "SpotGrant", {"AWS": "*"}, ["kms:CreateGrant"], spot | {"Bool": {"kms:GrantIsForAWSResource": "true"}}
            ),
        ],
    }


def bucket_policy(bucket_arn: str) -> dict[str, Any]:
    """Nothing over plain HTTP, whoever asks."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [bucket_arn, f"{bucket_arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }


def _node(scope: Scope, role: NodeRole) -> tuple[Statement, ...]:
    """What every node needs: its bundle, its secrets, a way to report, Session Manager."""
    secrets = (parameters.slurm_key(scope.cluster), parameters.host_key(scope.cluster, role))
    return (
        Statement("Bundle", ("s3:GetObject",), _objects(scope, parameters.bundle("*"), parameters.packages("*"))),
        Statement("Secrets", ("ssm:GetParameter",), tuple(scope.parameter(path) for path in secrets)),
        Statement(
            "Decrypt",
            ("kms:Decrypt",),
            (scope.key_arn,),
            {
                "StringEquals": {
                    "kms:ViaService": [f"{service}.{scope.region}.amazonaws.com" for service in ("s3", "ssm")]
                }
            },
        ),
        Statement("Report", ("ssm:PutParameter",), (scope.parameter(_reports(scope)),)),
        Statement(
            "SessionAgent",
            ("ssm:UpdateInstanceInformation",),
            (scope.ec2("instance"),),
            reason="the id of a machine is not known before it is launched; the agent can only tell of its own",
        ),
        Statement(
            "SessionChannels",
            (
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
                "ec2messages:AcknowledgeMessage",
                "ec2messages:DeleteMessage",
                "ec2messages:FailMessage",
                "ec2messages:GetEndpoint",
                "ec2messages:GetMessages",
                "ec2messages:SendReply",
            ),
            ("*",),
            reason="the message services of Systems Manager define no resources; a node gets only its own messages",
        ),
    )


def _launch(scope: Scope) -> tuple[Statement, ...]:
    """Launching under our templates, with our tag, in our subnets; ending only compute nodes of this cluster."""
    tagged = {"StringEquals": {_REQUESTED_TAG: scope.cluster}}
    fresh = tuple(scope.ec2(kind) for kind in ("instance", "volume", "network-interface", "spot-instances-request"))
    fixed = (
        *(scope.ec2("subnet", subnet) for subnet in scope.subnet_ids),
        *(f"arn:{scope.partition}:ec2:{scope.region}::image/{image}" for image in scope.images),
        *(scope.ec2("capacity-reservation", one) for one in scope.reservations if one.startswith("cr-")),
    )
    pools = any(not one.startswith("cr-") for one in scope.reservations)
    launch = ("ec2:RunInstances",)
    return (
        Statement("LaunchNew", launch, fresh, tagged),
        Statement(
            "LaunchFromOurs",
            launch,
            tuple(scope.ec2(kind) for kind in ("launch-template", "security-group", "placement-group")),
            scope.mine,
        ),
        Statement("LaunchInto", launch, fixed),
        *(
            (
                Statement(
                    "LaunchIntoPool",
                    launch,
                    (scope.ec2("capacity-reservation"),),
                    reason="a group of reservations is asked for by its ARN, but allowed by the reservations inside it",
                ),
            )
            if pools
            else ()
        ),
        Statement(
            "TagAtLaunch",
            ("ec2:CreateTags",),
            fresh,
            {"StringEquals": {"ec2:CreateAction": "RunInstances", _REQUESTED_TAG: scope.cluster}},
        ),
        Statement(
            "EndNodes",
            ("ec2:TerminateInstances",),
            (scope.ec2("instance"),),
            {"StringEquals": {_CLUSTER_TAG: scope.cluster, _ROLE_TAG: "compute"}},
        ),
        Statement(
            "Look",
            (
                "ec2:DescribeInstances",
                "ec2:DescribeInstanceTopology",
                "ec2:DescribeLaunchTemplateVersions",
            ),
            ("*",),
            reason="EC2's Describe calls cannot be bound to resources or tags",
        ),
        Statement(
            "PassComputeRole",
            ("iam:PassRole",),
            (scope.iam("role", aws_names.prefixed(scope.cluster, "compute")),),
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        Statement(
            "EncryptDisks",
            DISK_KEY,
            (scope.key_arn,),
            {"StringEquals": {"kms:ViaService": f"ec2.{scope.region}.amazonaws.com"}},
        ),
        Statement(
            "EncryptDisksGrant",
            ("kms:CreateGrant",),
            (scope.key_arn,),
            {"Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
        *(
            (Statement("FirstSpot", ("iam:CreateServiceLinkedRole",), (scope.iam("role", _SPOT_ROLE),)),)
            if scope.spot
            else ()
        ),
    )


def _names_of_nodes(scope: Scope) -> tuple[Statement, ...]:
    zone = f"arn:{scope.partition}:route53:::hostedzone/{scope.zone_id}"
    return (Statement("NodeNames", ("route53:ChangeResourceRecordSets",), (zone,)),)


def _spending(scope: Scope) -> Statement:
    budget_arn = f"arn:{scope.partition}:budgets::{scope.account}:budget/{scope.budget}"
    return Statement("Spending", ("budgets:ViewBudget",), (budget_arn,))


def _objects(scope: Scope, *keys: str) -> tuple[str, ...]:
    return tuple(f"{scope.bucket_arn}/{key}" for key in keys)


def _reports(scope: Scope) -> str:
    return parameters.node(scope.cluster, "*")


def _grant(
    sid: str, principal: Mapping[str, str], actions: list[str], conditions: Conditions | None = None
) -> dict[str, Any]:
    # In a key policy `*` is the key itself.
    text = {"Sid": sid, "Effect": "Allow", "Principal": dict(principal), "Action": actions, "Resource": "*"}
    return text | ({"Condition": conditions} if conditions else {})
