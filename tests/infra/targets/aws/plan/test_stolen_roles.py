"""Attacks with the credentials of a machine that was broken into: what each role still cannot do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra.targets.aws.node import parameters
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.iam import Scope, Statement
from infra.targets.aws.rehearse.policies import Authorization, is_allowed

SCOPE = Scope(
    "aws",
    "us-east-1",
    "123456789012",
    "demo",
    "arn:aws:s3:::bucket",
    "arn:aws:kms:us-east-1:123456789012:key/k",
    zone_id="Z1",
    subnet_ids=["subnet-1"],
    images=["ami-1"],
)
Role = Callable[[Scope], tuple[Statement, ...]]


def may(role: Role, action: str, resource: str, **context: str) -> bool:
    """Return whether a machine's role allows a call."""
    statements = [statement.as_json() for statement in role(SCOPE)]
    return is_allowed(statements, Authorization(action, resource, context))


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
        return may(role, "ssm:PutParameter", SCOPE.parameter(parameters.node("demo", node)))

    assert [node for node in own if not may_report(node)] == []
    assert [node for node in others if may_report(node)] == []
