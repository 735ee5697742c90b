"""Pre-flight of permissions (with canned policy simulations), KMS keys and permissions boundaries."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.preflight import permissions
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.resource_table import actions
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ANN = "arn:aws:iam::123456789012:user/ann"
ME = Identity("123456789012", ANN)


def result(action: str, decision: str, **more: Any) -> dict[str, Any]:
    return {"EvalActionName": action, "EvalDecision": decision, "EvalResourceName": "*", **more}


def subject(canned_aws: CannedAws, arn: str = ANN, **aws: Any) -> Subject:
    return Subject(spec(aws={"region": "us-east-1", **aws}), canned_aws.account, Identity("123456789012", arn))


def test_allowed_actions_have_no_issues() -> None:
    assert format_issues(permissions.judge(ME, [result("ec2:CreateVpc", "allowed")])) == []


@pytest.mark.parametrize(
    "more", [{}, {"OrganizationsDecisionDetail": {"AllowedByOrganizations": True}}, {"MissingContextValues": []}]
)
def test_an_explicit_deny_is_an_error(more: dict[str, Any]) -> None:
    assert format_issues(permissions.judge(ME, [result("ec2:CreateVpc", "explicitDeny", **more)])) == [
        f"error denied aws: {ANN} is denied ec2:CreateVpc; "
        "fix: ask the account's administrator; docs/aws.md lists what `up` needs"
    ]


def test_a_deny_by_the_organization_is_an_error() -> None:
    by_organization = {"OrganizationsDecisionDetail": {"AllowedByOrganizations": False}}
    (message,) = format_issues(
        permissions.judge(ME, [result("fsx:CreateFileSystem", "implicitDeny", **by_organization)])
    )
    assert message.startswith(f"error denied aws: {ANN} is denied fsx:CreateFileSystem")


@pytest.mark.parametrize(
    ("decision", "more"), [("implicitDeny", {}), ("explicitDeny", {"MissingContextValues": ["aws:RequestTag/owner"]})]
)
def test_an_implicit_deny_is_a_warning(decision: str, more: dict[str, Any]) -> None:
    """A policy that is restricted to names or tags gives the same result."""
    results = [result(f"iam:Action{number}", decision, **more) for number in range(8)]
    assert format_issues(permissions.judge(ME, results)) == [
        f"warning not_allowed aws: {ANN} is not allowed iam:Action0, iam:Action1, iam:Action2, iam:Action3, "
        "iam:Action4, "
        "iam:Action5 and 2 more, at least not on all resources; "
        "fix: add them to its policy; ignore this if they are restricted to matching names or tags"
    ]


def test_every_action_of_up_is_simulated(canned_aws: CannedAws) -> None:
    simulated: list[str] = []

    def simulate(params: dict[str, Any]) -> dict[str, Any]:
        body = params["body"]
        assert body["PolicySourceArn"] == ANN
        names = [value for key, value in body.items() if key.startswith("ActionNames.member.")]
        simulated.extend(names)
        return {"EvaluationResults": [result(name, "allowed") for name in names], "IsTruncated": False}

    canned_aws.answer("iam", "SimulatePrincipalPolicy", simulate)
    assert format_issues(permissions.check_permissions(subject(canned_aws))) == []
    assert simulated == list(actions(spec()))


def test_the_principal_of_a_session_is_its_role(canned_aws: CannedAws, aws: Moto) -> None:
    role = aws.client("iam").create_role(RoleName="builder", Path="/aws-reserved/", AssumeRolePolicyDocument="{}")
    session = "arn:aws:sts::123456789012:assumed-role/builder/ann@example.com"
    assert permissions.find_principal(subject(canned_aws, session)) == role["Role"]["Arn"]
    assert permissions.find_principal(subject(canned_aws)) == ANN


def test_root_is_not_simulated(canned_aws: CannedAws, aws: Moto) -> None:
    assert format_issues(permissions.check_permissions(subject(canned_aws, "arn:aws:iam::123456789012:root"))) == []
    assert aws.calls == []


def test_the_kms_key_must_exist_and_be_enabled(canned_aws: CannedAws, aws: Moto) -> None:
    kms = aws.client("kms")
    key = kms.create_key()["KeyMetadata"]
    arn = key["Arn"]
    assert format_issues(permissions.check_key_and_boundary(subject(canned_aws, kms_key=arn))) == []
    kms.disable_key(KeyId=key["KeyId"])
    assert format_issues(permissions.check_key_and_boundary(subject(canned_aws, kms_key=arn))) == [
        f"error key_state aws.kms_key: '{arn}' is Disabled and for ENCRYPT_DECRYPT; allowed: Enabled, ENCRYPT_DECRYPT; "
        "fix: enable it, or name another"
    ]
    missing = arn.rpartition("/")[0] + "/00000000-1111-2222-3333-444444444444"
    assert format_issues(permissions.check_key_and_boundary(subject(canned_aws, kms_key=missing))) == [
        f"error key_missing aws.kms_key: '{missing}' does not exist; fix: name one of this region and account"
    ]


def test_the_permissions_boundary_must_exist(canned_aws: CannedAws, aws: Moto) -> None:
    document = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    boundary = aws.client("iam").create_policy(PolicyName="boundary", PolicyDocument=document)["Policy"]["Arn"]
    assert format_issues(permissions.check_key_and_boundary(subject(canned_aws, permissions_boundary=boundary))) == []
    missing = f"{boundary}-gone"
    assert format_issues(permissions.check_key_and_boundary(subject(canned_aws, permissions_boundary=missing))) == [
        f"error boundary_missing aws.permissions_boundary: '{missing}' does not exist: no role could be created; "
        "fix: name a policy of this account"
    ]
