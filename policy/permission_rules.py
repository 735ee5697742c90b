"""Rules for IAM policies, roles and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from policy.rule import Props, Rule

ROLE, ROLE_POLICY, POLICY = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy"


def _statements(props: Props) -> list[Props]:
    statements: list[Props] = json.loads(props.get("policy") or "{}").get("Statement", [])
    return statements


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _allowed(props: Props) -> Iterator[tuple[list[str], list[str], Props]]:
    for statement in _statements(props):
        if statement["Effect"] == "Allow":
            yield (
                _as_list(statement.get("Action")),
                _as_list(statement.get("Resource")),
                statement.get("Condition") or {},
            )


def _no_star_action(props: Props) -> bool:
    return not any(action == "*" or action.endswith(":*") for actions, _, _ in _allowed(props) for action in actions)


# Actions for which AWS defines no resources.
WITHOUT_RESOURCE = ("ec2:Describe", "ssmmessages:", "ec2messages:")


def _no_star_resource(props: Props) -> bool:
    return all(
        "*" not in resources or all(action.startswith(WITHOUT_RESOURCE) for action in actions)
        for actions, resources, _ in _allowed(props)
    )


_TAG_KEYS = ("ResourceTag", "RequestTag", "CreateAction", "SourceInstanceARN")
# All resources of a kind need a condition, except where a node can only report about itself.
_KINDS = ("instance/*", "volume/*", "network-interface/*", "launch-template/*", "security-group/*", "placement-group/*")
_SELF_REPORTS = ("ssm:UpdateInstanceInformation",)


def _whole_kinds_have_conditions(props: Props) -> bool:
    for actions, resources, condition in _allowed(props):
        tagged = any(word in key for operator in condition.values() for key in operator for word in _TAG_KEYS)
        whole = any(resource.endswith(_KINDS) for resource in resources)
        if whole and not tagged and set(actions) - set(_SELF_REPORTS):
            return False
    return True


def _passes_named_roles(props: Props) -> bool:
    return all(
        "iam:PassRole" not in actions
        or (all("*" not in resource for resource in resources) and "StringEquals" in condition)
        for actions, resources, condition in _allowed(props)
    )


_TRUSTED = {"ec2.amazonaws.com", "budgets.amazonaws.com", "vpc-flow-logs.amazonaws.com", "dlm.amazonaws.com"}


def _trusts_little(props: Props) -> bool:
    for statement in json.loads(props["assumeRolePolicy"])["Statement"]:
        principal = statement["Principal"]
        if isinstance(principal, dict) and set(principal) == {"AWS"} and _are_roles(principal["AWS"]):
            continue
        if not isinstance(principal, dict) or set(principal) != {"Service"} or principal["Service"] not in _TRUSTED:
            return False
        if principal["Service"] != "ec2.amazonaws.com" and "aws:SourceAccount" not in json.dumps(
            statement.get("Condition")
        ):
            return False
    return True


def _are_roles(arns: str | list[str]) -> bool:
    """Return whether these are single roles or users; the ARN of an account's root stands for everyone in it."""
    return all("*" not in arn and not arn.endswith(":root") for arn in ([arns] if isinstance(arns, str) else arns))


def _names_principals(props: Props) -> bool:
    return all(
        statement["Principal"] != "*"
        and (statement["Principal"] != {"AWS": "*"} or "aws:PrincipalArn" in json.dumps(statement.get("Condition")))
        for statement in _statements(props)
    )


def _tls_only(props: Props) -> bool:
    return any(
        statement["Effect"] == "Deny"
        and statement["Principal"] == "*"
        and statement["Action"] == "s3:*"
        and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
        for statement in _statements(props)
    )


_BAD_DOC = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def _doc(**statement: Any) -> dict[str, Any]:
    return {"policy": json.dumps({"Statement": [{"Effect": "Allow", **statement}]})}


def _trust(principal: Any) -> dict[str, Any]:
    return {"assumeRolePolicy": json.dumps({"Statement": [{"Effect": "Allow", "Principal": principal}]})}


RULES: tuple[Rule, ...] = (
    Rule(
        "S3_TLS_ONLY",
        "A bucket's policy refuses requests without TLS.",
        ("aws:s3/bucketPolicy:BucketPolicy",),
        _tls_only,
        (("aws:s3/bucketPolicy:BucketPolicy", _doc(Action="s3:GetObject", Principal="*", Resource="*")),),
    ),
    Rule(
        "CKV_AWS_62/63",
        "A policy allows no wildcard actions.",
        (ROLE_POLICY, POLICY),
        _no_star_action,
        ((ROLE_POLICY, {"policy": json.dumps(_BAD_DOC)}), (POLICY, _doc(Action=["s3:*"], Resource="arn:x"))),
    ),
    Rule(
        "CKV_AWS_355",
        "A policy allows resource * only for actions without resources.",
        (ROLE_POLICY, POLICY),
        _no_star_resource,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource="*")),),
    ),
    Rule(
        "WHOLE_KINDS",
        "A policy allows all resources of a kind only with a condition on tags.",
        (ROLE_POLICY, POLICY),
        _whole_kinds_have_conditions,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource=["arn:aws:ec2:r:a:instance/*"])),),
    ),
    Rule(
        "PASS_ROLE",
        "A policy allows iam:PassRole only for named roles and a named service.",
        (ROLE_POLICY, POLICY),
        _passes_named_roles,
        (
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/*"])),
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/one"])),
        ),
    ),
    Rule(
        "CKV_AWS_60/61",
        "A role trusts a single AWS service, outside EC2 only on behalf of this account, or single roles.",
        (ROLE,),
        _trusts_little,
        (
            (ROLE, _trust({"AWS": "*"})),
            (ROLE, _trust({"AWS": ["arn:aws:iam::123456789012:role/x", "arn:aws:iam::123456789012:root"]})),
            (ROLE, _trust("*")),
            (ROLE, _trust({"Service": "lambda.amazonaws.com"})),
            (ROLE, _trust({"Service": "budgets.amazonaws.com"})),
        ),
    ),
    Rule(
        "CKV_AWS_274",
        "A role has no policies managed by AWS.",
        (ROLE,),
        lambda props: not props.get("managedPolicyArns"),
        ((ROLE, _trust({"Service": "ec2.amazonaws.com"}) | {"managedPolicyArns": ["arn:aws:iam::aws:policy/x"]}),),
    ),
    Rule(
        "CKV_AWS_7",
        "A KMS key is rotated.",
        ("aws:kms/key:Key",),
        lambda props: props.get("enableKeyRotation") is True,
        (("aws:kms/key:Key", {"policy": "{}"}),),
    ),
    Rule(
        "CKV_AWS_33",
        "A KMS key's policy has principal * only with a condition on the principal.",
        ("aws:kms/key:Key",),
        _names_principals,
        (("aws:kms/key:Key", _doc(Principal="*")), ("aws:kms/key:Key", _doc(Principal={"AWS": "*"}))),
    ),
)
