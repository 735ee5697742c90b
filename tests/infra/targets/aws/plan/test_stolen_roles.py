"""Attacks with the credentials of a machine that was broken into: what each role still cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from cluster.inventory import Role as NodeRole
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.policy import Scope, Statement
from infra.targets.aws.rehearse.authorizations import Template, list_authorizations
from infra.targets.aws.rehearse.policies import Authorization, is_allowed, list_denied

SCOPE = Scope(
    "aws",
    "us-east-1",
    "123456789012",
    "demo",
    "arn:aws:s3:::bucket",
    "arn:aws:kms:us-east-1:123456789012:key/k",
    zone_id="Z1",
    vpc_id="vpc-1",
    subnet_ids=["subnet-1"],
    images=["ami-1"],
    instance_types=["g6.xlarge", "g6.2xlarge"],
    security_groups=["sg-compute"],
)
COMPUTE_TAGS = {"muster.cluster": "demo", "muster.role": "compute"}
TEMPLATES = {
    "lt-own": Template("ami-1", "g6.xlarge", SCOPE.iam("role", "muster-demo-compute"), tags={"instance": COMPUTE_TAGS}),
    "lt-of-others": Template("ami-1", "g6.xlarge", SCOPE.iam("role", "muster-demo-compute")),
}
MACHINE = SCOPE.ec2("instance", "i-1")
NODES: dict[NodeRole, str] = {"controller": "controller", "login": "login", "compute": "gpu-1"}
INSIDE = {"aws:SourceVpc": "vpc-1"}
Role = Callable[[Scope], tuple[Statement, ...]]


class Account:
    """An account with the cluster's resources, and some of others."""

    id, region = SCOPE.account, SCOPE.region

    def tags(self, resource_id: str) -> Mapping[str, str]:
        return {} if resource_id.endswith("-of-others") else COMPUTE_TAGS

    def template(self, id_: str, _version: str) -> Template:
        return TEMPLATES[id_]

    def parameter_key(self, _name: str) -> str:
        return SCOPE.key_arn

    def bucket_key(self, _bucket: str) -> str:
        return SCOPE.key_arn


LAUNCH = {
    "LaunchTemplate.LaunchTemplateId": "lt-own",
    "InstanceType": "g6.2xlarge",
    "NetworkInterface.1.SubnetId": "subnet-1",
    "NetworkInterface.1.SecurityGroupId.1": "sg-compute",
} | {
    f"TagSpecification.{number}.{field}": value
    for number, kind in enumerate(("instance", "volume", "network-interface"), 1)
    for field, value in {
        "ResourceType": kind,
        "Tag.1.Key": "muster.cluster",
        "Tag.1.Value": "demo",
        "Tag.2.Key": "muster.role",
        "Tag.2.Value": "compute",
    }.items()
}


def list_denied_launch(**changes: str) -> list[str]:
    """Return the resources that the controller's role may not use in a launch; an empty value leaves a field out."""
    params = {name: value for name, value in (LAUNCH | changes).items() if value}
    statements = [statement.as_json() for statement in iam.controller(SCOPE)]
    denied = list_denied(statements, list_authorizations(Account(), "ec2", "RunInstances", params))
    return [authorization.resource.rpartition(":")[2] for authorization in denied]


def test_the_controller_launches_the_nodes_of_its_cluster() -> None:
    assert list_denied_launch() == []
    assert list_denied_launch(InstanceType="") == []


@pytest.mark.attack(7)
@pytest.mark.parametrize(
    ("changes", "denied"),
    [
        ({"InstanceType": "p5.48xlarge"}, "instance/*"),
        ({"LaunchTemplate.LaunchTemplateId": "", "ImageId": "ami-1"}, "instance/*"),
        ({"LaunchTemplate.LaunchTemplateId": "lt-of-others"}, "launch-template/lt-of-others"),
        ({"ImageId": "ami-9"}, "image/ami-9"),
        ({"ImageId": "ami-1"}, "image/ami-1"),
        ({"NetworkInterface.1.SubnetId": "subnet-public"}, "subnet/subnet-public"),
        ({"NetworkInterface.1.SecurityGroupId.1": "sg-controller"}, "security-group/sg-controller"),
        ({"NetworkInterface.1.SecurityGroupId.1": "sg-of-others"}, "security-group/sg-of-others"),
        ({"TagSpecification.1.Tag.1.Value": "another"}, "instance/*"),
        ({"TagSpecification.1.Tag.2.Value": "controller"}, "instance/*"),
        ({"TagSpecification.1.Tag.2.Value": "image"}, "instance/*"),
    ],
)
def test_a_stolen_controller_role_launches_nothing_else(changes: dict[str, str], denied: str) -> None:
    assert denied in list_denied_launch(**changes)


@pytest.mark.attack(7)
def test_a_stolen_controller_role_gives_its_machines_no_other_role() -> None:
    for role, expected in (("compute", True), ("controller", False), ("login", False)):
        to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
        assert may(iam.controller, "iam:PassRole", SCOPE.iam("role", f"muster-demo-{role}"), **to_ec2) is expected


@pytest.mark.attack(7)
@pytest.mark.parametrize("role", [iam.login, iam.compute])
@pytest.mark.parametrize("action", ["ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeInstances"])
def test_other_stolen_roles_launch_and_see_nothing(role: Role, action: str) -> None:
    assert not may(role, action, SCOPE.ec2("instance"), **{"ec2:InstanceType": "g6.xlarge"})
    assert not may(role, action, "*")


@pytest.mark.attack(5)
@pytest.mark.parametrize("role", [iam.controller, iam.login, iam.compute])
@pytest.mark.parametrize("source", [{}, {"aws:SourceVpc": "vpc-of-others"}])
def test_stolen_credentials_are_useless_outside_of_the_vpc(role: Role, source: dict[str, str]) -> None:
    calls = [
        ("ssm:GetParameter", SCOPE.parameter(parameters.slurm_key("demo"))),
        _read_host_key(_role_name(role)),
        ("ssm:PutParameter", SCOPE.parameter(parameters.node("demo", _role_name(role)))),
        ("s3:GetObject", f"{SCOPE.bucket_arn}/{parameters.bundle('0' * 64)}"),
        ("s3:PutObject", f"{SCOPE.bucket_arn}/{parameters.stored(NODES[_role_name(role)], MACHINE)}"),
    ]
    machine = {"ec2:SourceInstanceARN": MACHINE}
    inside, elsewhere = INSIDE | machine, source | machine
    assert [call for call in calls if not may(role, *call, **inside)] == []
    assert [call for call in calls if may(role, *call, **elsewhere)] == []


@pytest.mark.attack(5)
@pytest.mark.parametrize("role", [iam.controller, iam.login, iam.compute])
def test_a_stolen_role_changes_only_what_its_own_machine_has_stored(role: Role) -> None:
    own, other = parameters.stored(NODES[_role_name(role)], MACHINE), "gpu-2"
    victim = SCOPE.ec2("instance", "i-victim")
    denied = [
        parameters.stored(NODES[_role_name(role)], victim),
        parameters.stored(other, victim),
        parameters.stored(parameters.builder("gpu"), victim, parameters.PACKAGE_LIST),
        f"{parameters.logs(other)}i-victim.log.gz",
        f"{parameters.logs(other)}{MACHINE}.log.gz",
        parameters.stored(other, "*"),
        *(parameters.stored(node, MACHINE) for name, node in NODES.items() if name != _role_name(role)),
    ]

    def may_do(action: str, key: str, **context: str) -> bool:
        return may(role, action, f"{SCOPE.bucket_arn}/{key}", **INSIDE, **context)

    machine = {"ec2:SourceInstanceARN": MACHINE}
    assert may_do("s3:PutObject", own, **machine)
    assert [key for key in denied if may_do("s3:PutObject", key, **machine)] == []
    # Without the key, which only credentials of a machine have, nothing can be stored.
    assert [key for key in (own, *denied) if may_do("s3:PutObject", key)] == []
    others = ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:GetObject", "s3:PutObjectTagging")
    assert [(action, key) for action in others for key in (own, *denied) if may_do(action, key, **machine)] == []


def test_only_the_controller_reads_the_webhook_and_only_if_there_is_one() -> None:
    with_alerts = replace(SCOPE, alerts=True)
    address = Authorization("ssm:GetParameter", SCOPE.parameter(parameters.webhook("demo")), dict(INSIDE))

    def reads(role: Role, scope: Scope) -> bool:
        return is_allowed([statement.as_json() for statement in role(scope)], address)

    assert reads(iam.controller, with_alerts)
    assert not any(reads(role, with_alerts) for role in (iam.login, iam.compute))
    assert not reads(iam.controller, SCOPE)


def test_an_existing_vpc_may_have_no_endpoints_so_that_nothing_is_denied() -> None:
    statements = [statement.as_json() for statement in iam.compute(replace(SCOPE, vpc_id=""))]
    key = Authorization("ssm:GetParameter", SCOPE.parameter(parameters.slurm_key("demo")))
    assert is_allowed(statements, key)


@pytest.mark.attack(1)
@pytest.mark.parametrize("right", ["ClientMount", "ClientWrite", "ClientRootAccess"])
@pytest.mark.parametrize(
    ("tls", "through_target", "expected"),
    [("true", "true", True), ("false", "true", False), ("true", "false", False)],
)
def test_efs_admits_only_tls_through_its_mount_targets(
    right: str, tls: str, through_target: str, expected: bool
) -> None:
    arn = "arn:aws:elasticfilesystem:us-east-1:123456789012:file-system/fs-1"
    context = {"aws:SecureTransport": tls, "elasticfilesystem:AccessedViaMountTarget": through_target}
    needed = Authorization(f"elasticfilesystem:{right}", arn, context)
    assert is_allowed(iam.file_system_policy(arn)["Statement"], needed) is expected


def _read_host_key(role: NodeRole) -> tuple[str, str]:
    """Return the call with which a machine reads its host key."""
    if role == "compute":
        return "s3:GetObject", f"{SCOPE.bucket_arn}/{parameters.own_host_key(MACHINE)}"
    return "ssm:GetParameter", SCOPE.parameter(parameters.host_key("demo", role))


def _role_name(role: Role) -> NodeRole:
    names: dict[Role, NodeRole] = {iam.controller: "controller", iam.login: "login", iam.compute: "compute"}
    return names[role]


def may(role: Role, action: str, resource: str, **context: str) -> bool:
    """Return whether a machine's role allows a call."""
    statements = [statement.as_json() for statement in role(SCOPE)]
    return is_allowed(statements, Authorization(action, resource, context))


@pytest.mark.attack(6)
@pytest.mark.parametrize(
    ("role", "own", "others"),
    [
        (iam.controller, ["controller"], ["login", "compute", "gpu-1", "image-build"]),
        (iam.login, ["login"], ["controller", "compute", "gpu-1"]),
        (iam.compute, ["compute", "gpu-1", "big-gpu-12", parameters.builder("build")], ["controller", "login"]),
    ],
)
def test_a_role_cannot_forge_the_report_of_another_role(role: Role, own: list[str], others: list[str]) -> None:
    def may_report(node: str) -> bool:
        return may(role, "ssm:PutParameter", SCOPE.parameter(parameters.node("demo", node)), **INSIDE)

    assert [node for node in own if not may_report(node)] == []
    assert [node for node in others if may_report(node)] == []


@pytest.mark.attack(5)
@pytest.mark.parametrize("role", [iam.controller, iam.login, iam.compute])
def test_a_stolen_role_reads_the_host_key_of_its_own_machine_only(role: Role) -> None:
    def may_call(action: str, resource: str) -> bool:
        return may(role, action, resource, **INSIDE, **{"ec2:SourceInstanceARN": MACHINE})

    own, victim = _read_host_key(_role_name(role)), SCOPE.ec2("instance", "i-victim")
    others = [
        *(_read_host_key(other) for other in NODES if other != _role_name(role)),
        ("ssm:GetParameter", SCOPE.parameter(parameters.host_key("demo", "compute"))),
        *(
            ("s3:GetObject", f"{SCOPE.bucket_arn}/{parameters.own_host_key(arn)}")
            for arn in (victim, "*", f"{MACHINE}/x")
        ),
        ("s3:GetObject", f"{SCOPE.bucket_arn}/{parameters.HOST_KEYS}"),
        ("s3:PutObject", f"{SCOPE.bucket_arn}/{parameters.HOST_KEYS}"),
        ("s3:PutObject", f"{SCOPE.bucket_arn}/{parameters.own_host_key(victim)}"),
    ]
    assert may_call(*own)
    allowed = [call for call in others if may_call(*call)]
    # The controller launches the machines and hands them their keys.
    handed_over = [
        ("s3:GetObject", f"{SCOPE.bucket_arn}/{parameters.HOST_KEYS}"),
        ("s3:PutObject", f"{SCOPE.bucket_arn}/{parameters.own_host_key(victim)}"),
    ]
    assert allowed == (handed_over if role is iam.controller else [])
