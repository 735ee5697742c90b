"""IAM policies: one document per role, with minimal permissions; each wildcard states its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from cluster.inventory import Role as NodeRole
from infra.targets.aws import names as aws_names
from infra.targets.aws.node import parameters
from infra.targets.aws.plan.launch_policy import (
    DISK_KEY,
    FOR_AWS_RESOURCE,
    SPOT_ROLE,
    allow_launches,
    allow_managing_nodes,
)
from infra.targets.aws.plan.policy import CLUSTER_TAG, Conditions, Scope, Statement

Role = Literal["controller", "login", "compute", "budget", "flow-logs", "snapshots"]
NODE_ROLES: tuple[NodeRole, ...] = ("controller", "login", "compute")
FIXED_ROLES: tuple[NodeRole, ...] = ("controller", "login")
"""Roles of a single machine, whose host key is in a parameter that only the role reads."""
_OWN_ARN = "${ec2:SourceInstanceARN}"
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
    "snapshots": "dlm.amazonaws.com",
}


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
        *(_webhook(scope) if scope.alerts else ()),
        Statement("Fleet", ("s3:GetObject",), _objects(scope, parameters.FLEET)),
        Statement("Packages", ("s3:PutObject",), _objects(scope, parameters.packages("*"))),
        Statement("HostKeys", ("s3:GetObject",), _objects(scope, parameters.HOST_KEYS)),
        Statement("HandOver", ("s3:PutObject",), _objects(scope, parameters.own_host_key("*"))),
        Statement("ReadReports", ("ssm:GetParameters",), (scope.parameter(parameters.node(scope.cluster, "*")),)),
        *allow_launches(scope),
        *allow_managing_nodes(scope),
        _node_names(scope),
        *((_spending(scope),) if scope.budget else ()),
    )


def login(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of the login node."""
    return (*_node(scope, "login"), *_become_jobs(scope))


def compute(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of compute nodes."""
    own_key = _objects(scope, parameters.own_host_key(_OWN_ARN))
    return (*_node(scope, "compute"), Statement("HostKey", ("s3:GetObject",), own_key), *_become_jobs(scope))


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


def snapshots(scope: Scope) -> tuple[Statement, ...]:
    """Return the permissions of the lifecycle policy: to copy the cluster's volumes and delete old copies."""
    own = {"StringEquals": {CLUSTER_TAG: scope.cluster}}
    # Snapshots have no account in their ARN.
    copies = f"arn:{scope.partition}:ec2:{scope.region}::snapshot/*"
    key = (scope.key_arn,)
    # docs.aws.amazon.com/ebs/latest/userguide/dlm-prerequisites.html: the role must be able to use the volume's key.
    use_key = ("kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext")
    return (
        Statement("Copy", ("ec2:CreateSnapshot",), (scope.ec2("volume"),), own),
        Statement("NameCopies", ("ec2:CreateSnapshot", "ec2:CreateTags"), (copies,)),
        Statement("DeleteCopies", ("ec2:DeleteSnapshot",), (copies,), own),
        Statement(
            "Look",
            ("ec2:DescribeSnapshots", "ec2:DescribeVolumes"),
            ("*",),
            reason="AWS defines no resources for these actions",
        ),
        Statement("Key", (*use_key, "kms:ReEncryptFrom", "kms:ReEncryptTo"), key),
        Statement("KeyGrant", ("kms:CreateGrant",), key, FOR_AWS_RESOURCE),
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
    spot = {"ArnEquals": {"aws:PrincipalArn": f"arn:{partition}:iam::{account}:role/{SPOT_ROLE}"}}
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
            _grant("SpotGrant", {"AWS": "*"}, ["kms:CreateGrant"], spot | FOR_AWS_RESOURCE),
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


def file_system_policy(file_system_arn: str) -> dict[str, Any]:
    """Return the policy of an EFS filesystem, which denies NFS without TLS and everything but its mount targets.

    It admits every machine that reaches a mount target: only Amazon's mount helper can prove which role a machine has.
    """
    actions = [f"elasticfilesystem:Client{right}" for right in ("Mount", "RootAccess", "Write")]
    client = {"Principal": {"AWS": "*"}, "Action": actions, "Resource": file_system_arn}
    through_target = {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}}
    without_tls = {"Bool": {"aws:SecureTransport": "false"}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "MountTargets", "Effect": "Allow", **client, "Condition": through_target},
            {"Sid": "TlsOnly", "Effect": "Deny", **client, "Condition": without_tls},
        ],
    }


def _webhook(scope: Scope) -> tuple[Statement, ...]:
    return (Statement("Webhook", ("ssm:GetParameter",), (scope.parameter(parameters.webhook(scope.cluster)),)),)


def _node(scope: Scope, role: NodeRole) -> tuple[Statement, ...]:
    """Return the permissions of every node: its bundle, its secrets, its report, Session Manager."""
    host_key = (parameters.host_key(scope.cluster, role),) if role in FIXED_ROLES else ()
    secrets = (parameters.slurm_key(scope.cluster), *host_key)
    return (
        Statement("Bundle", ("s3:GetObject",), _objects(scope, parameters.bundle("*"), parameters.packages("*"))),
        Statement("Secrets", ("ssm:GetParameter",), tuple(scope.parameter(path) for path in secrets)),
        *_bind_to_vpc(scope),
        Statement(
            "Decrypt",
            ("kms:Decrypt",),
            (scope.key_arn,),
            scope.if_called_by("s3", "ssm"),
        ),
        *_hooks(scope, role),
        Statement("Logs", ("s3:PutObject",), _logs(scope, role)),
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


def _bind_to_vpc(scope: Scope) -> Iterator[Statement]:
    """Yield the denial of the cluster's secrets, reports and objects to requests from elsewhere than its VPC.

    AWS knows the VPC of a request that came through an endpoint
    (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-sourcevpc).
    In an existing VPC there may be none, so that every request would be denied.
    """
    if scope.vpc_id:
        elsewhere = {"StringNotEquals": {"aws:SourceVpc": scope.vpc_id}}
        parameter = scope.parameter(f"{parameters.root(scope.cluster)}/*")
        get_and_put = ("ssm:GetParameter", "ssm:GetParameters", "ssm:PutParameter")
        yield Statement("OwnVpcParameters", get_and_put, (parameter,), elsewhere, effect="Deny")
        objects = _objects(scope, "*")
        yield Statement("OwnVpcObjects", ("s3:GetObject", "s3:PutObject"), objects, elsewhere, effect="Deny")


def _hooks(scope: Scope, role: NodeRole) -> Iterator[Statement]:
    if objects := scope.hooks.get(role):
        yield Statement("Hooks", ("s3:GetObject",), tuple(f"arn:{scope.partition}:s3:::{name}" for name in objects))


def _become_jobs(scope: Scope) -> Iterator[Statement]:
    if scope.jobs:
        role = jobs_role_arn(scope.partition, scope.account, scope.cluster)
        yield Statement("BecomeJobs", ("sts:AssumeRole",), (role,))


def _node_names(scope: Scope) -> Statement:
    zone = f"arn:{scope.partition}:route53:::hostedzone/{scope.zone_id}"
    return Statement("NodeNames", ("route53:ChangeResourceRecordSets",), (zone,))


def _spending(scope: Scope) -> Statement:
    budget_arn = f"arn:{scope.partition}:budgets::{scope.account}:budget/{scope.budget}"
    return Statement("Spending", ("budgets:ViewBudget",), (budget_arn,))


def _objects(scope: Scope, *keys: str) -> tuple[str, ...]:
    return tuple(f"{scope.bucket_arn}/{key}" for key in keys)


def _logs(scope: Scope, role: NodeRole) -> tuple[str, ...]:
    """Return what a machine may store: objects in its own folder of a node of its role.

    AWS replaces the variable with the ARN of the machine that got the credentials
    (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html), so that credentials taken from
    one machine cannot replace what another has stored.
    """
    keys = (parameters.stored(pattern, _OWN_ARN, "*") for pattern in _name_patterns(role))
    return _objects(scope, *keys)


def _reports(scope: Scope, role: NodeRole) -> tuple[str, ...]:
    """Return the reports that machines of a role may write: before one has read its name, it uses that of its role.

    A role cannot be restricted to the machine's own report: the name of a parameter can hold no policy variable that
    identifies the machine, because all of them contain a colon.
    """
    patterns = ("compute", *_name_patterns(role)) if role == "compute" else (role,)
    return tuple(scope.parameter(parameters.node(scope.cluster, pattern)) for pattern in patterns)


def _name_patterns(role: NodeRole) -> tuple[str, ...]:
    """Return patterns of the names of a role's nodes.

    Names of compute nodes and of machines that build images have a hyphen, those of other nodes have none.
    """
    return ("*-*",) if role == "compute" else (role,)


def _grant(
    sid: str, principal: Mapping[str, str], actions: list[str], conditions: Conditions | None = None
) -> dict[str, Any]:
    # In a key policy the resource `*` is the key itself.
    statement = {"Sid": sid, "Effect": "Allow", "Principal": dict(principal), "Action": actions, "Resource": "*"}
    return statement | ({"Condition": conditions} if conditions else {})
