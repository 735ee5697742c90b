"""Every example stack against every security rule, and every rule against resources that violate it."""

from __future__ import annotations

import json
import runpy
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from infra.targets.aws.plan import security
from infra.targets.registry import read_spec as read
from policy.resource_rules import EGRESS, INGRESS, INSTANCE, TEMPLATE, strings
from policy.rule import Rule
from policy.rules import RULES
from tests.infra.targets.aws.build.capture import ROOT, SECRETS, STACKS, capture, example, of_type

SUPPRESSED: dict[tuple[str, str], str] = {}
"""Reasons for exceptions, by rule and resource; it is empty and should stay empty."""


@pytest.mark.parametrize("stack", STACKS)
def test_no_example_breaks_a_rule(stack: str) -> None:
    violations = [
        (rule.id, resource.label)
        for resource in example(stack)
        for rule in RULES
        if not rule.allows(resource.type, resource.props)
    ]
    assert [(rule, label) for rule, label in violations if (rule, label) not in SUPPRESSED] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_rejects_its_violations(rule: Rule) -> None:
    assert rule.violations
    for type_, props in rule.violations:
        assert type_ in rule.types
        assert not rule.holds(props), props
    assert {type_ for type_, _ in rule.violations} <= set(rule.types)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_applies_to_some_example(rule: Rule) -> None:
    """Otherwise a rule for a renamed type would never fail."""
    seen = {resource.type for stack in STACKS for resource in example(stack)}
    assert [type_ for type_ in rule.types if type_ not in seen] == []


@pytest.mark.parametrize("stack", STACKS)
def test_no_machine_has_a_secret_in_its_properties(stack: str) -> None:
    texts = [text for machine in of_type(example(stack), INSTANCE, TEMPLATE) for text in strings(machine.props)]
    assert [secret for secret in SECRETS.values() for text in texts if secret in text] == []


@pytest.mark.parametrize("stack", STACKS)
def test_a_new_network_has_a_flow_log_and_an_empty_default_group(stack: str) -> None:
    resources = example(stack)
    networks = len(of_type(resources, "aws:ec2/vpc:Vpc"))
    assert len(of_type(resources, "aws:ec2/flowLog:FlowLog")) == networks
    assert len(of_type(resources, "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup")) == networks


@pytest.mark.parametrize("stack", STACKS)
def test_every_bucket_is_private_encrypted_and_versioned(stack: str) -> None:
    resources = example(stack)
    for kind in (
        "BucketPublicAccessBlock",
        "BucketServerSideEncryptionConfiguration",
        "BucketVersioning",
        "BucketPolicy",
    ):
        token = f"aws:s3/{kind[0].lower()}{kind[1:]}:{kind}"
        closed = {resource.props["bucket"] for resource in of_type(resources, token)}
        assert closed == {resource.props["bucket"] for resource in of_type(resources, "aws:s3/bucket:Bucket")}, kind


@pytest.mark.parametrize("stack", STACKS)
def test_compute_nodes_may_exchange_all_traffic(stack: str) -> None:
    resources = example(stack)
    for kind in (INGRESS, EGRESS):
        own = [
            resource.props
            for resource in of_type(resources, kind)
            if resource.props["securityGroupId"]
            == resource.props.get("referencedSecurityGroupId")
            == "SecurityGroup/compute"
        ]
        assert [(resource["ipProtocol"], "fromPort" in resource) for resource in own] == [("-1", False)]


@pytest.mark.parametrize("stack", STACKS)
def test_every_outbound_rule_has_its_inbound_rule(stack: str) -> None:
    rules = security.rules(read(ROOT / "stacks" / f"Pulumi.{stack}.yaml"))
    outbound = {(r.group, r.peer, r.protocol, r.ports) for r in rules if r.direction == "out"}
    inbound = {(r.peer, r.group, r.protocol, r.ports) for r in rules if r.direction == "in"}
    inside = {rule for rule in outbound if rule[1] not in (security.WORLD, security.VPC)}
    assert inside == {rule for rule in inbound if rule[0] != security.VPC}


def test_names_of_rules_are_unique() -> None:
    for stack in STACKS:
        names = [rule.name for rule in security.rules(read(ROOT / "stacks" / f"Pulumi.{stack}.yaml"))]
        assert len(names) == len(set(names))


def test_lustre_over_efa_may_exchange_all_traffic() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")
    shared = spec.storage["shared"].model_copy(update={"efa": True, "size_gb": 19200, "throughput": 250})
    rules = security.rules(spec.model_copy(update={"storage": {"shared": shared}}))
    open_ = {(r.group, r.direction, r.peer) for r in rules if r.protocol == security.ALL}
    assert {
        ("storage", "in", "compute"),
        ("storage", "out", "compute"),
        ("compute", "in", "storage"),
        ("compute", "out", "storage"),
        ("storage", "in", "storage"),
        ("storage", "out", "storage"),
    } <= open_


def test_every_role_has_the_permissions_boundary() -> None:
    roles = of_type(example("aws-full"), "aws:iam/role:Role")
    assert {resource.props.get("permissionsBoundary") for resource in roles} == {
        "arn:aws:iam::123456789012:policy/boundary"
    }
    assert len(roles) == 7


def test_policies_of_the_spec_are_attached_and_only_users_machines_assume_the_role_of_jobs() -> None:
    resources = example("aws-full")
    attached = {
        (each.props["role"], each.props["policyArn"].rpartition("/")[2])
        for each in of_type(resources, "aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    }
    compute, jobs = "muster-full-compute", "muster-full-jobs"
    assert attached == {(compute, "CloudWatchAgentServerPolicy"), (jobs, "AmazonS3ReadOnlyAccess")}
    (role,) = (each for each in of_type(resources, "aws:iam/role:Role") if each.name == "jobs")
    (trust,) = json.loads(role.props["assumeRolePolicy"])["Statement"]
    assert sorted(trust["Principal"]) == ["AWS"]
    assert len(trust["Principal"]["AWS"]) == 2
    policies = {each.name: each.props["policy"] for each in of_type(resources, "aws:iam/rolePolicy:RolePolicy")}
    assert {name for name, text in policies.items() if "sts:AssumeRole" in text} == {"login", "compute"}


def test_the_controller_terminates_only_compute_nodes_of_its_cluster() -> None:
    policy = next(
        resource
        for resource in of_type(example("aws-full"), "aws:iam/rolePolicy:RolePolicy")
        if resource.name == "controller"
    )
    statements = [s for s in json.loads(policy.props["policy"])["Statement"] if "ec2:TerminateInstances" in s["Action"]]
    tags = {"aws:ResourceTag/muster.cluster": "full", "aws:ResourceTag/muster.role": "compute"}
    assert [s["Condition"] for s in statements] == [{"StringEquals": tags}]


def test_only_the_controller_may_read_the_password_and_launch() -> None:
    policies = {
        resource.name: resource.props["policy"]
        for resource in of_type(example("aws-full"), "aws:iam/rolePolicy:RolePolicy")
    }
    for right in ("db-password", "ec2:RunInstances", "iam:PassRole", "route53:"):
        assert [name for name, text in policies.items() if right in text] == ["controller"], right


@pytest.mark.parametrize("stack", STACKS)
def test_role_policies_are_within_the_size_limit(stack: str) -> None:
    """IAM allows 10,240 characters of inline policies per role, not counting whitespace."""
    for resource in of_type(example(stack), "aws:iam/rolePolicy:RolePolicy"):
        assert len("".join(resource.props["policy"].split())) < 10_240


def test_the_policy_of_a_large_cluster_is_within_the_size_limit() -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml")
    group = next(iter(spec.groups.values())).model_copy(update={"count": 256})
    many = capture(spec.model_copy(update={"groups": {f"g{number}": group for number in range(8)}}), "many")
    policy = next(
        resource for resource in of_type(many, "aws:iam/rolePolicy:RolePolicy") if resource.name == "controller"
    )
    assert len("".join(policy.props["policy"].split())) < 10_240


def test_the_policy_pack_reports_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fake pulumi_policy: the real one needs another release of protobuf than the Pulumi SDK."""
    packs: list[dict[str, Any]] = []
    library = SimpleNamespace(
        EnforcementLevel=SimpleNamespace(MANDATORY="mandatory"),
        PolicyPack=lambda **fields: packs.append(fields),
        ResourceValidationArgs=object,
        ResourceValidationPolicy=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", library)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(ROOT / "policy" / "__main__.py"))
    (pack,) = packs
    policies = pack["policies"]
    assert len({policy.name for policy in policies}) == len(policies) == len(RULES)
    for rule, policy in zip(RULES, policies, strict=True):
        for type_, props in rule.violations:
            reports: list[str] = []
            policy.validate(SimpleNamespace(resource_type=type_, props=props), reports.append)
            policy.validate(SimpleNamespace(resource_type="aws:other:Type", props=props), reports.append)
            assert reports == [f"{rule.id}: {rule.description}"]
