"""Rights by IAM's simulation, which moto lacks; keys and boundaries, which it has."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.preflight import permissions
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.resource_table import actions
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import words
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ANN = "arn:aws:iam::123456789012:user/ann"
ME = Identity("123456789012", ANN)


def result(action: str, decision: str, **more: Any) -> dict[str, Any]:
    return {"EvalActionName": action, "EvalDecision": decision, "EvalResourceName": "*", **more}


def subject(answered: Answered, arn: str = ANN, **aws: Any) -> Subject:
    return Subject(spec(aws={"region": "us-east-1", **aws}), answered.account, Identity("123456789012", arn))


def test_all_allowed() -> None:
    assert words(permissions.judge(ME, [result("ec2:CreateVpc", "allowed")])) == []


@pytest.mark.parametrize(
    "more", [{}, {"OrganizationsDecisionDetail": {"AllowedByOrganizations": True}}, {"MissingContextValues": []}]
)
def test_denied_outright(more: dict[str, Any]) -> None:
    assert words(permissions.judge(ME, [result("ec2:CreateVpc", "explicitDeny", **more)])) == [
        f"error denied aws: {ANN} is denied ec2:CreateVpc; "
        "fix: ask the account's administrator; docs/aws.md lists what `up` needs"
    ]


def test_denied_by_the_organization() -> None:
    by = {"OrganizationsDecisionDetail": {"AllowedByOrganizations": False}}
    (said,) = words(permissions.judge(ME, [result("fsx:CreateFileSystem", "implicitDeny", **by)]))
    assert said.startswith(f"error denied aws: {ANN} is denied fsx:CreateFileSystem")


@pytest.mark.parametrize(
    ("decision", "more"), [("implicitDeny", {}), ("explicitDeny", {"MissingContextValues": ["aws:RequestTag/owner"]})]
)
def test_not_allowed_on_everything(decision: str, more: dict[str, Any]) -> None:
    """A policy that is bound to names or tags looks the same."""
    results = [result(f"iam:Action{number}", decision, **more) for number in range(8)]
    assert words(permissions.judge(ME, results)) == [
        f"warning not_allowed aws: {ANN} is not allowed iam:Action0, iam:Action1, iam:Action2, iam:Action3, "
        "iam:Action4, "
        "iam:Action5 and 2 more, at least not on all resources; "
        "fix: add them to its policy; ignore this if they are restricted to matching names or tags"
    ]


def test_everything_that_up_does_is_simulated(answered: Answered) -> None:
    asked: list[str] = []

    def simulate(params: dict[str, Any]) -> dict[str, Any]:
        body = params["body"]
        assert body["PolicySourceArn"] == ANN
        some = [value for key, value in body.items() if key.startswith("ActionNames.member.")]
        asked.extend(some)
        return {"EvaluationResults": [result(one, "allowed") for one in some], "IsTruncated": False}

    answered.answer("iam", "SimulatePrincipalPolicy", simulate)
    assert words(permissions.check_permissions(subject(answered))) == []
    assert asked == list(actions(spec()))


def test_a_session_is_its_role_with_its_path(answered: Answered, aws: Moto) -> None:
    made = aws.client("iam").create_role(RoleName="builder", Path="/aws-reserved/", AssumeRolePolicyDocument="{}")
    session = "arn:aws:sts::123456789012:assumed-role/builder/ann@example.com"
    assert permissions.find_principal(subject(answered, session)) == made["Role"]["Arn"]
    assert permissions.find_principal(subject(answered)) == ANN


def test_root_is_not_simulated(answered: Answered, aws: Moto) -> None:
    assert words(permissions.check_permissions(subject(answered, "arn:aws:iam::123456789012:root"))) == []
    assert aws.calls == []


def test_the_key_of_the_spec(answered: Answered, aws: Moto) -> None:
    kms = aws.client("kms")
    key = kms.create_key()["KeyMetadata"]
    arn = key["Arn"]
    assert words(permissions.check_key_and_boundary(subject(answered, kms_key=arn))) == []
    kms.disable_key(KeyId=key["KeyId"])
    assert words(permissions.check_key_and_boundary(subject(answered, kms_key=arn))) == [
        f"error key_state aws.kms_key: '{arn}' is Disabled and for ENCRYPT_DECRYPT; allowed: Enabled, ENCRYPT_DECRYPT; "
        "fix: enable it, or name another"
    ]
    gone = arn.rpartition("/")[0] + "/00000000-1111-2222-3333-444444444444"
    assert words(permissions.check_key_and_boundary(subject(answered, kms_key=gone))) == [
        f"error key_missing aws.kms_key: '{gone}' does not exist; fix: name one of this region and account"
    ]


def test_the_boundary_of_the_spec(answered: Answered, aws: Moto) -> None:
    document = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    made = aws.client("iam").create_policy(PolicyName="boundary", PolicyDocument=document)["Policy"]["Arn"]
    assert words(permissions.check_key_and_boundary(subject(answered, permissions_boundary=made))) == []
    gone = f"{made}-gone"
    assert words(permissions.check_key_and_boundary(subject(answered, permissions_boundary=gone))) == [
        f"error boundary_missing aws.permissions_boundary: '{gone}' does not exist: no role could be created; "
        "fix: name a policy of this account"
    ]
