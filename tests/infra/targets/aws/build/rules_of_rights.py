"""Rules about policies: who may do what, and to which resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.infra.targets.aws.build.rule import Props, Rule

ROLE, ROLE_POLICY, POLICY = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy"


def _statements(props: Props) -> list[Props]:
    found: list[Props] = json.loads(props.get("policy") or "{}").get("Statement", [])
    return found


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _allowed(props: Props) -> Iterator[tuple[list[str], list[str], Props]]:
    for one in _statements(props):
        if one["Effect"] == "Allow":
            yield _listed(one.get("Action")), _listed(one.get("Resource")), one.get("Condition") or {}


def _no_star_action(props: Props) -> bool:
    return not any(action == "*" or action.endswith(":*") for actions, _, _ in _allowed(props) for action in actions)


# Actions for which AWS defines no resource; the policies say so where they use them.
WITHOUT_RESOURCE = ("ec2:Describe", "ssmmessages:", "ec2messages:")


def _no_star_resource(props: Props) -> bool:
    return all(
        "*" not in resources or all(action.startswith(WITHOUT_RESOURCE) for action in actions)
        for actions, resources, _ in _allowed(props)
    )


_BOUND = ("ResourceTag", "RequestTag", "CreateAction", "SourceInstanceARN")
# Whole kinds of resources may be named only with a condition, or where a node speaks of itself.
_KINDS = ("instance/*", "volume/*", "network-interface/*", "launch-template/*", "security-group/*", "placement-group/*")
_OF_ITSELF = ("ssm:UpdateInstanceInformation",)


def _whole_kinds_are_bound(props: Props) -> bool:
    for actions, resources, condition in _allowed(props):
        bound = any(word in key for operator in condition.values() for key in operator for word in _BOUND)
        whole = any(one.endswith(_KINDS) for one in resources)
        if whole and not bound and set(actions) - set(_OF_ITSELF):
            return False
    return True


def _passes_named_roles(props: Props) -> bool:
    return all(
        "iam:PassRole" not in actions or (all("*" not in one for one in resources) and "StringEquals" in condition)
        for actions, resources, condition in _allowed(props)
    )


_TRUSTED = {"ec2.amazonaws.com", "budgets.amazonaws.com", "vpc-flow-logs.amazonaws.com"}


def _trusts_one_service(props: Props) -> bool:
    for one in json.loads(props["assumeRolePolicy"])["Statement"]:
        principal = one["Principal"]
        if not isinstance(principal, dict) or set(principal) != {"Service"} or principal["Service"] not in _TRUSTED:
            return False
        if principal["Service"] != "ec2.amazonaws.com" and "aws:SourceAccount" not in json.dumps(one.get("Condition")):
            return False
    return True


def _key_is_ours(props: Props) -> bool:
    """`*` as principal only where a condition names who is meant."""
    return all(
        one["Principal"] != "*"
        and (one["Principal"] != {"AWS": "*"} or "aws:PrincipalArn" in json.dumps(one.get("Condition")))
        for one in _statements(props)
    )


def _tls_only(props: Props) -> bool:
    return any(
        one["Effect"] == "Deny"
        and one["Principal"] == "*"
        and one["Action"] == "s3:*"
        and one.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
        for one in _statements(props)
    )


_BAD_DOC = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def _doc(**statement: Any) -> Props:
    return {"policy": json.dumps({"Statement": [{"Effect": "Allow", **statement}]})}


def _trust(principal: Any) -> Props:
    return {"assumeRolePolicy": json.dumps({"Statement": [{"Effect": "Allow", "Principal": principal}]})}


RULES: tuple[Rule, ...] = (
    Rule(
        "S3_TLS_ONLY",
        ("aws:s3/bucketPolicy:BucketPolicy",),
        _tls_only,
        (("aws:s3/bucketPolicy:BucketPolicy", _doc(Action="s3:GetObject", Principal="*", Resource="*")),),
    ),
    Rule(
        "CKV_AWS_62/63",
        (ROLE_POLICY, POLICY),
        _no_star_action,
        ((ROLE_POLICY, {"policy": json.dumps(_BAD_DOC)}), (POLICY, _doc(Action=["s3:*"], Resource="arn:x"))),
    ),
    Rule(
        "CKV_AWS_355",
        (ROLE_POLICY, POLICY),
        _no_star_resource,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource="*")),),
    ),
    Rule(
        "WHOLE_KINDS",
        (ROLE_POLICY, POLICY),
        _whole_kinds_are_bound,
        ((ROLE_POLICY, _doc(Action=["ec2:TerminateInstances"], Resource=["arn:aws:ec2:r:a:instance/*"])),),
    ),
    Rule(
        "PASS_ROLE",
        (ROLE_POLICY, POLICY),
        _passes_named_roles,
        (
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/*"])),
            (ROLE_POLICY, _doc(Action=["iam:PassRole"], Resource=["arn:aws:iam::1:role/one"])),
        ),
    ),
    Rule(
        "CKV_AWS_60/61",
        (ROLE,),
        _trusts_one_service,
        (
            (ROLE, _trust({"AWS": "*"})),
            (ROLE, _trust("*")),
            (ROLE, _trust({"Service": "lambda.amazonaws.com"})),
            (ROLE, _trust({"Service": "budgets.amazonaws.com"})),
        ),
    ),
    Rule(
        "CKV_AWS_274",
        (ROLE,),
        lambda props: not props.get("managedPolicyArns"),
        ((ROLE, _trust({"Service": "ec2.amazonaws.com"}) | {"managedPolicyArns": ["arn:aws:iam::aws:policy/x"]}),),
    ),
    Rule(
        "CKV_AWS_7",
        ("aws:kms/key:Key",),
        lambda props: props.get("enableKeyRotation") is True,
        (("aws:kms/key:Key", {"policy": "{}"}),),
    ),
    Rule(
        "CKV_AWS_33",
        ("aws:kms/key:Key",),
        _key_is_ours,
        (("aws:kms/key:Key", _doc(Principal="*")), ("aws:kms/key:Key", _doc(Principal={"AWS": "*"}))),
    ),
)
