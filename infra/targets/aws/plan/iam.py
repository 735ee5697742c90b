"""IAM policies: one document per role, with minimal permissions; each wildcard states its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster import names
from cluster.inventory import Role as NodeRole
from infra.targets.aws import names as aws_names
from infra.targets.aws.node import parameters

Role = Literal["controller", "login", "compute", "budget", "flow-logs"]
NODE_ROLES: tuple[NodeRole, ...] = ("controller", "login", "compute")
JOBS = "jobs"
"""The role whose credentials the users' programs get; machines assume it for them."""
JOB_HOSTS: tuple[NodeRole, ...] = ("login", "compute")
"""The machines on which users get the credentials of JOBS."""
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

_FOR_AWS_RESOURCE = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
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
    subnet_ids: Sequence[str] = ()
    images: Sequence[str] = ()
    reservations: Sequence[str] = ()
    """Ids of capacity reservations and blocks, or ARNs of resource groups of reservations."""
    spot: bool = False
    """Whether any group may use spot instances."""
    budget: str | None = None
    """Name of the budget."""
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
        return {"StringEquals": {_CLUSTER_TAG: self.cluster}}

    @property
    def if_requested_tag(self) -> Conditions:
        """The condition that a new resource gets the cluster's tag."""
        return {"StringEquals": {_REQUESTED_TAG: self.cluster}}

    @property
    def new_resources(self) -> tuple[str, ...]:
        """What a launch creates."""
        kinds = ("instance", "volume", "network-interface", "spot-instances-request")
        return tuple(self.ec2(kind) for kind in kinds)

    @property
    def cluster_resources(self) -> tuple[str, ...]:
        """What a launch uses of the cluster, all of it tagged."""
        return tuple(self.ec2(kind) for kind in ("launch-template", "security-group", "placement-group"))

    @property
    def shared_resources(self) -> tuple[str, ...]:
        """What a launch uses that may belong to others: subnets, images, reservations."""
        return (
            *(self.ec2("subnet", subnet) for subnet in self.subnet_ids),
            *(f"arn:{self.partition}:ec2:{self.region}::image/{image}" for image in self.images),
            *(self.ec2("capacity-reservation", id_) for id_ in self.reservations if id_.startswith("cr-")),
        )

    @property
    def reservation_groups(self) -> tuple[str, ...]:
        """The reservations that are resource groups."""
        return tuple(arn for arn in self.reservations if not arn.startswith("cr-"))


def document(statements: Iterable[Statement]) -> dict[str, Any]:
    """Return a policy document."""
    return {"Version": "2012-10-17", "Statement": [statement.as_json() for statement in statements]}


def trust(role: Role, account: str) -> dict[str, Any]:
    """Return the document that lets only the role's service use it, and only on behalf of this account."""
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": TRUSTED[role]},
    }
    if role not in NODE_ROLES:
        statement["Condition"] = {"StringEquals": {"aws:SourceAccount": account}}
    return {"Version": "2012-10-17", "Statement": [statement]}


def controller(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of the controller."""
    return (
        *_node(scope, "controller"),
        Statement("Database", ("ssm:GetParameter",), (scope.parameter(parameters.db_password(scope.cluster)),)),
        Statement("Fleet", ("s3:GetObject",), _objects(scope, parameters.FLEET)),
        Statement("Packages", ("s3:PutObject",), _objects(scope, parameters.packages("*"))),
        Statement("ReadReports", ("ssm:GetParameters",), (scope.parameter(parameters.node(scope.cluster, "*")),)),
        *_launch(scope),
        *_manage_nodes(scope),
        _node_names(scope),
        *((_spending(scope),) if scope.budget else ()),
    )


def login(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of the login node."""
    return (*_node(scope, "login"), *_become_jobs(scope))


def compute(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of compute nodes."""
    return (*_node(scope, "compute"), *_become_jobs(scope))


def trust_job_hosts(machine_roles: Iterable[str]) -> dict[str, Any]:
    """Return the document that lets only machines with these roles, given by ARN, assume the role of jobs."""
    principal = {"AWS": sorted(machine_roles)}
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
    return {"Version": "2012-10-17", "Statement": [statement]}


def jobs_role_arn(partition: str, account: str, cluster: str) -> str:
    """Return the ARN of the role of jobs."""
    return f"arn:{partition}:iam::{account}:role/{aws_names.prefixed(cluster, JOBS)}"


def budget(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of the budget: only to attach the no-launch policy to the controller's role."""
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
    """Return the denial that is attached to the controller's role when the budget is spent."""
    instances = f"arn:{partition}:ec2:{region}:{account}:instance/*"
    return (Statement("BudgetIsSpent", ("ec2:RunInstances",), (instances,), effect="Deny"),)


def flow_logs(log_group_arn: str) -> tuple[Statement, ...]:
    """Return the permissions of the flow log: to write to its log group."""
    return (
        Statement(
            "Write",
            ("logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"),
            (f"{log_group_arn}:*",),
        ),
    )


def key_policy(partition: str, region: str, account: str, cluster: str) -> dict[str, Any]:
    """Return the policy of the cluster's key: the account by IAM, the cluster's log groups, and EC2's spot service."""
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
            # A role that may not exist yet cannot be a principal, but its ARN can be compared.
            _grant("Spot", {"AWS": "*"}, list(DISK_KEY), spot),
            _grant("SpotGrant", {"AWS": "*"}, ["kms:CreateGrant"], spot | _FOR_AWS_RESOURCE),
        ],
    }


def bucket_policy(bucket_arn: str) -> dict[str, Any]:
    """Return the policy of the bucket, which denies requests without TLS."""
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
    """Return the permissions of every node: its bundle, its secrets, its report, Session Manager."""
    secrets = (parameters.slurm_key(scope.cluster), parameters.host_key(scope.cluster, role))
    return (
        Statement("Bundle", ("s3:GetObject",), _objects(scope, parameters.bundle("*"), parameters.packages("*"))),
        Statement("Secrets", ("ssm:GetParameter",), tuple(scope.parameter(path) for path in secrets)),
        Statement(
            "Decrypt",
            ("kms:Decrypt",),
            (scope.key_arn,),
            scope.if_called_by("s3", "ssm"),
        ),
        *_hooks(scope, role),
        Statement("Logs", ("s3:PutObject",), _objects(scope, f"{parameters.LOGS}*")),
        Statement("EncryptObjects", ("kms:GenerateDataKey",), (scope.key_arn,), scope.if_called_by("s3")),
        Statement("Report", ("ssm:PutParameter",), _reports(scope, role)),
        Statement(
            "SessionAgent",
            ("ssm:UpdateInstanceInformation",),
            (scope.ec2("instance"),),
            reason="the instance id is unknown before the launch; the agent can only report its own machine",
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


def _hooks(scope: Scope, role: NodeRole) -> Iterator[Statement]:
    if objects := scope.hooks.get(role):
        yield Statement("Hooks", ("s3:GetObject",), tuple(f"arn:{scope.partition}:s3:::{name}" for name in objects))


def _become_jobs(scope: Scope) -> Iterator[Statement]:
    if scope.jobs:
        role = jobs_role_arn(scope.partition, scope.account, scope.cluster)
        yield Statement("BecomeJobs", ("sts:AssumeRole",), (role,))


def _launch(scope: Scope) -> Iterator[Statement]:
    """Yield the permission to launch nodes: from the cluster's templates, with its tag, in its subnets."""
    run = ("ec2:RunInstances",)
    yield Statement("LaunchNew", run, scope.new_resources, scope.if_requested_tag)
    yield Statement("LaunchFromOurs", run, scope.cluster_resources, scope.if_own_tag)
    yield Statement("LaunchInto", run, scope.shared_resources)
    if scope.reservation_groups:
        reason = "a group of reservations is requested by its ARN, but allowed by the reservations in it"
        yield Statement("LaunchIntoPool", run, (scope.ec2("capacity-reservation"),), reason=reason)
    at_launch = {"StringEquals": {"ec2:CreateAction": "RunInstances", _REQUESTED_TAG: scope.cluster}}
    yield Statement("TagAtLaunch", ("ec2:CreateTags",), scope.new_resources, at_launch)


def _manage_nodes(scope: Scope) -> Iterator[Statement]:
    """Yield the permissions to terminate and describe nodes, and what launching them needs in other services."""
    compute_nodes = {"StringEquals": {_CLUSTER_TAG: scope.cluster, _ROLE_TAG: "compute"}}
    yield Statement("EndNodes", ("ec2:TerminateInstances",), (scope.ec2("instance"),), compute_nodes)
    yield Statement("Look", _DESCRIBE, ("*",), reason="EC2 cannot restrict Describe calls by resource or tag")
    compute_role = scope.iam("role", aws_names.prefixed(scope.cluster, "compute"))
    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    yield Statement("PassComputeRole", ("iam:PassRole",), (compute_role,), to_ec2)
    yield Statement("EncryptDisks", DISK_KEY, (scope.key_arn,), scope.if_called_by("ec2"))
    yield Statement("EncryptDisksGrant", ("kms:CreateGrant",), (scope.key_arn,), _FOR_AWS_RESOURCE)
    if scope.spot:
        spot_role = scope.iam("role", _SPOT_ROLE)
        yield Statement("FirstSpot", ("iam:CreateServiceLinkedRole",), (spot_role,))


def _node_names(scope: Scope) -> Statement:
    zone = f"arn:{scope.partition}:route53:::hostedzone/{scope.zone_id}"
    return Statement("NodeNames", ("route53:ChangeResourceRecordSets",), (zone,))


def _spending(scope: Scope) -> Statement:
    budget_arn = f"arn:{scope.partition}:budgets::{scope.account}:budget/{scope.budget}"
    return Statement("Spending", ("budgets:ViewBudget",), (budget_arn,))


def _objects(scope: Scope, *keys: str) -> tuple[str, ...]:
    return tuple(f"{scope.bucket_arn}/{key}" for key in keys)


def _reports(scope: Scope, role: NodeRole) -> tuple[str, ...]:
    """Return the reports that machines of a role may write: before one has read its name, it uses that of its role.

    Names of compute nodes and of machines that build images have a hyphen, those of other nodes have none. A role
    cannot be restricted to the machine's own report: the name of a parameter can hold no policy variable that
    identifies the machine, because all of them contain a colon.
    """
    patterns = ("compute", "*-*") if role == "compute" else (role,)
    return tuple(scope.parameter(parameters.node(scope.cluster, pattern)) for pattern in patterns)


def _grant(
    sid: str, principal: Mapping[str, str], actions: list[str], conditions: Conditions | None = None
) -> dict[str, Any]:
    # In a key policy the resource `*` is the key itself.
    statement = {"Sid": sid, "Effect": "Allow", "Principal": dict(principal), "Action": actions, "Resource": "*"}
    return statement | ({"Condition": conditions} if conditions else {})
