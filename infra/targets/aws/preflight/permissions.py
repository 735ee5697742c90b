"""Rights: whether whoever is asking may do what `up` and `teardown` do, by IAM's own simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.resource_table import actions
from infra.targets.aws.spec import aws_section

_WHERE = "aws"
# IAM takes no more at once than fit into its answer.
_AT_ONCE = 60
_NO_SUCH = "NoSuchEntity"
_SHOWN = 6
_ENABLED, _USAGE = "Enabled", "ENCRYPT_DECRYPT"

Result = Mapping[str, Any]


def allowed(subject: Subject) -> Iterator[Issue]:
    source = principal(subject)
    if source is None:
        return
    simulate = subject.client("iam").get_paginator("simulate_principal_policy")
    results: list[Result] = []
    wanted = actions(subject.spec)
    for first in range(0, len(wanted), _AT_ONCE):
        asked = list(wanted[first : first + _AT_ONCE])
        for page in simulate.paginate(PolicySourceArn=source, ActionNames=asked):
            results += page["EvaluationResults"]
    yield from judge(subject.identity, results)


def given(subject: Subject) -> Iterator[Issue]:
    """What the spec names by ARN exists: the key, and the policy that bounds the roles."""
    section = aws_section(subject.spec)
    if section and section.kms_key:
        yield from _key(subject, section.kms_key)
    if section and section.permissions_boundary:
        yield from _boundary(subject, section.permissions_boundary)


def judge(identity: Identity, results: Iterable[Result]) -> Iterator[Issue]:
    """A right that is bound to names or tags cannot be told from one that is missing: asked about anything, IAM says
    no to both. Only what is denied outright is an error."""
    denied: list[str] = []
    absent: list[str] = []
    for result in results:
        if result["EvalDecision"] == "allowed":
            continue
        by_organization = result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations") is False
        outright = result["EvalDecision"] == "explicitDeny" and not result.get("MissingContextValues")
        (denied if by_organization or outright else absent).append(result["EvalActionName"])
    if denied:
        message = f"{identity.arn} is denied {_listed(denied)}"
        yield error("denied", _WHERE, message, "ask whoever runs the account; docs/aws.md lists what `up` needs")
    if absent:
        message = f"{identity.arn} is not allowed {_listed(absent)}, at least not on everything"
        fix = "add them to its policy; if they are bound to names or tags that fit, all is well"
        yield warning("not_allowed", _WHERE, message, fix)


def principal(subject: Subject) -> str | None:
    """What IAM simulates: a session of a role is that role. None for the root user, whom nothing in IAM bounds."""
    kind, _, rest = subject.identity.arn.split(":", 5)[5].partition("/")
    if kind == "root":
        return None
    if kind != "assumed-role":
        return subject.identity.arn
    name = rest.partition("/")[0]
    # The session's ARN leaves out the role's path, as roles of IAM Identity Center have one.
    return str(subject.client("iam").get_role(RoleName=name)["Role"]["Arn"])


def _key(subject: Subject, arn: str) -> Iterator[Issue]:
    try:
        found = subject.client("kms").describe_key(KeyId=arn)["KeyMetadata"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != "NotFoundException":
            raise
        yield error("key_missing", "aws.kms_key", f"'{arn}' does not exist", "name one of this region and account")
        return
    state, usage = found["KeyState"], found.get("KeyUsage", _USAGE)
    if (state, usage) != (_ENABLED, _USAGE):
        message = f"'{arn}' is {state} and for {usage}; allowed: {_ENABLED}, {_USAGE}"
        yield error("key_state", "aws.kms_key", message, "enable it, or name another")


def _boundary(subject: Subject, arn: str) -> Iterator[Issue]:
    try:
        subject.client("iam").get_policy(PolicyArn=arn)
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_SUCH:
            raise
        message = f"'{arn}' does not exist: no role could be made"
        yield error("boundary_missing", "aws.permissions_boundary", message, "name a policy of this account")


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
