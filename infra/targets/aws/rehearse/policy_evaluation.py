"""Whether all policies together permit a request within one account, in the order in which AWS evaluates them.

1. A denial in any policy wins.
2. A policy of the resource that allows the session, the user or everyone is sufficient.
3. A permissions boundary has to allow everything else.
4. A policy of the resource that allows the role is then sufficient.
5. Else a policy of the role has to allow it, and for a key also the key's policy has to leave it to the account.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-basics.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
https://docs.aws.amazon.com/kms/latest/developerguide/key-policies.html
Organization policies and session policies are not evaluated, because muster uses neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infra.targets.aws.rehearse.policies import Authorization, Statement, applies

Grantee = Literal["direct", "role", "account"]
"""Whom a statement of a resource names: the caller's session, user or everyone; its role; or its account."""
_KEY = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d+:key/.+")
_ACCOUNT_NUMBER = 4
"""Position of the account in an ARN."""


@dataclass(frozen=True)
class Caller:
    """Who makes a request: a user, or a session of a role."""

    arn: str
    """ARN of the user or role."""
    session_arn: str = ""
    """ARN of the role's session, such as `arn:aws:sts::111122223333:assumed-role/compute/i-1`; a user has none."""

    @property
    def account(self) -> str:
        return self.arn.split(":")[_ACCOUNT_NUMBER]


@dataclass(frozen=True)
class Policies:
    """The statements that apply to a request, by the kind of policy."""

    identity: Sequence[Statement]
    boundary: Sequence[Statement] | None = None
    """None: the role has no boundary."""
    resource: Sequence[Statement] = ()
    """Those of the bucket or the key."""


def explain_denial(policies: Policies, caller: Caller, needed: Authorization) -> str:
    """Return why the policies do not give a permission; empty if they do."""
    named = [(statement, find_grantee(statement, caller)) for statement in policies.resource]
    of_resource = [(statement, grantee) for statement, grantee in named if grantee and applies(statement, needed)]
    if denying := _find_denial(policies, [statement for statement, _ in of_resource], needed):
        return f"{denying} denies it"
    grantees = {grantee for statement, grantee in of_resource if statement["Effect"] == "Allow"}
    if "direct" in grantees:
        return ""
    if policies.boundary is not None and not _has("Allow", policies.boundary, needed):
        return "the permissions boundary does not allow it"
    if "role" in grantees:
        return ""
    if _KEY.fullmatch(needed.resource) and "account" not in grantees:
        return "the key's policy neither allows it nor leaves it to the policies of the account"
    return "" if _has("Allow", policies.identity, needed) else "no policy allows it"


def find_grantee(statement: Statement, caller: Caller) -> Grantee | None:
    """Return how a statement of a resource names a caller, or None; raise ValueError for an element that is not known.

    What a statement gives to everyone is not limited by a boundary, also not if a condition compares the role's ARN:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html#principal-roles
    """
    if "Principal" not in statement:
        raise ValueError("a statement of a resource needs the element Principal; NotPrincipal is not evaluated")
    principals = set(_list_principals(statement["Principal"]))
    account = {caller.account, f"arn:{caller.arn.split(':')[1]}:iam::{caller.account}:root"}
    own = {caller.session_arn or caller.arn}
    if principals & {"*", *own}:
        return "direct"
    if caller.arn in principals:
        return "role"
    return "account" if principals & account else None


def _find_denial(policies: Policies, resource: Sequence[Statement], needed: Authorization) -> str:
    """Return the kind of policy that denies a permission; empty if none does."""
    kinds = {
        "a policy of the role": policies.identity,
        "the permissions boundary": policies.boundary or (),
        "the policy of the resource": resource,
    }
    return next((kind for kind, statements in kinds.items() if _has("Deny", statements, needed)), "")


def _has(effect: str, statements: Iterable[Statement], needed: Authorization) -> bool:
    return any(statement["Effect"] == effect and applies(statement, needed) for statement in statements)


def _list_principals(principal: Any) -> list[str]:
    """Return the AWS principals of the element; services and federated users are never the caller here."""
    if principal == "*":
        return ["*"]
    listed = principal.get("AWS", [])
    return [listed] if isinstance(listed, str) else list(listed)
