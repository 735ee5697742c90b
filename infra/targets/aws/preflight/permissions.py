"""Checks of permissions: IAM simulates whether the caller may do what `up` and `teardown` do."""

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
# IAM limits a request to what fits into its response.
_ACTIONS_PER_REQUEST = 60
_NO_POLICY = "NoSuchEntity"
_MAX_SHOWN = 6
_ENABLED, _ENCRYPTION = "Enabled", "ENCRYPT_DECRYPT"

Result = Mapping[str, Any]


def check_permissions(subject: Subject) -> Iterator[Issue]:
    """Report actions that the caller is denied or not allowed."""
    source = find_principal(subject)
    if source is None:
        return
    simulate = subject.client("iam").get_paginator("simulate_principal_policy")
    results: list[Result] = []
    needed_actions = actions(subject.spec)
    for first in range(0, len(needed_actions), _ACTIONS_PER_REQUEST):
        batch = list(needed_actions[first : first + _ACTIONS_PER_REQUEST])
        for page in simulate.paginate(PolicySourceArn=source, ActionNames=batch):
            results += page["EvaluationResults"]
    yield from judge(subject.identity, results)


def check_key_and_boundary(subject: Subject) -> Iterator[Issue]:
    """Report a key or a permissions boundary that does not exist or cannot be used."""
    section = aws_section(subject.spec)
    if section and section.kms_key:
        yield from _check_key(subject, section.kms_key)
    if section and section.permissions_boundary:
        yield from _check_boundary(subject, section.permissions_boundary)


def judge(identity: Identity, results: Iterable[Result]) -> Iterator[Issue]:
    """Yield an error for actions that are denied outright and a warning for those not allowed.

    The simulation covers all resources, so permissions restricted to names or tags look the same as missing ones.
    """
    denied: list[str] = []
    not_allowed: list[str] = []
    for result in results:
        if result["EvalDecision"] == "allowed":
            continue
        by_organization = result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations") is False
        outright = result["EvalDecision"] == "explicitDeny" and not result.get("MissingContextValues")
        (denied if by_organization or outright else not_allowed).append(result["EvalActionName"])
    if denied:
        message = f"{identity.arn} is denied {_format_names(denied)}"
        yield error("denied", _WHERE, message, "ask the account's administrator; docs/aws.md lists what `up` needs")
    if not_allowed:
        message = f"{identity.arn} is not allowed {_format_names(not_allowed)}, at least not on all resources"
        fix = "add them to its policy; ignore this if they are restricted to matching names or tags"
        yield warning("not_allowed", _WHERE, message, fix)


def find_principal(subject: Subject) -> str | None:
    """Return the ARN that IAM can simulate: for a session, its role; None for the root user, who is not restricted."""
    kind, _, path = subject.identity.arn.split(":", 5)[5].partition("/")
    if kind == "root":
        return None
    if kind != "assumed-role":
        return subject.identity.arn
    name = path.partition("/")[0]
    # The ARN of a session lacks the path of the role, which roles of IAM Identity Center have.
    return str(subject.client("iam").get_role(RoleName=name)["Role"]["Arn"])


def _check_key(subject: Subject, arn: str) -> Iterator[Issue]:
    try:
        key = subject.client("kms").describe_key(KeyId=arn)["KeyMetadata"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != "NotFoundException":
            raise
        yield error("key_missing", "aws.kms_key", f"'{arn}' does not exist", "name one of this region and account")
        return
    state, usage = key["KeyState"], key.get("KeyUsage", _ENCRYPTION)
    if (state, usage) != (_ENABLED, _ENCRYPTION):
        message = f"'{arn}' is {state} and for {usage}; allowed: {_ENABLED}, {_ENCRYPTION}"
        yield error("key_state", "aws.kms_key", message, "enable it, or name another")


def _check_boundary(subject: Subject, arn: str) -> Iterator[Issue]:
    try:
        subject.client("iam").get_policy(PolicyArn=arn)
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_POLICY:
            raise
        message = f"'{arn}' does not exist: no role could be created"
        yield error("boundary_missing", "aws.permissions_boundary", message, "name a policy of this account")


def _format_names(names: list[str]) -> str:
    hidden = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
