"""Statements of IAM policies: what each is about, and what those of a role's own policies give together.

An operator that is not known raises, because guessing would hide a missing permission. `policy_evaluation` adds the
policies of resources and boundaries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

Statement = Mapping[str, Any]
_VARIABLE = re.compile(r"\$\{([\w:/.-]+)\}")


@dataclass(frozen=True)
class Authorization:
    """A permission that a call needs."""

    action: str
    """Such as `s3:GetObject`."""
    resource: str
    """ARN, or `*` for calls that AWS cannot restrict by resource."""
    context: Mapping[str, str] = field(default_factory=dict)
    """Values of condition keys, such as `aws:ResourceTag/team`."""


def list_denied(statements: Iterable[Statement], needed: Iterable[Authorization]) -> list[Authorization]:
    """Return the permissions that the statements do not give."""
    all_statements = list(statements)
    return [authorization for authorization in needed if not is_allowed(all_statements, authorization)]


def is_allowed(statements: Sequence[Statement], needed: Authorization) -> bool:
    """Return whether the statements of all policies together allow an action on a resource."""
    effects = {statement["Effect"] for statement in statements if applies(statement, needed)}
    return "Allow" in effects and "Deny" not in effects


def applies(statement: Statement, needed: Authorization) -> bool:
    """Return whether a statement is about an action on a resource, and its conditions are met."""
    return (
        _covers(statement, "Action", lambda pattern: _matches(pattern.lower(), needed.action.lower()), needed)
        and _covers(statement, "Resource", lambda pattern: _matches(pattern, needed.resource), needed)
        and all(
            _is_met(operator, needed.context.get(key), _resolve(expected, needed.context))
            for operator, keys in (statement.get("Condition") or {}).items()
            for key, expected in keys.items()
        )
    )


def _covers(statement: Statement, element: str, matches: Callable[[str], bool], needed: Authorization) -> bool:
    """Return whether an element of a statement, or its negation such as NotAction, covers a request."""
    if negated := statement.get(f"Not{element}"):
        return not any(matches(pattern) for pattern in _resolve(negated, needed.context))
    return any(matches(pattern) for pattern in _resolve(statement[element], needed.context))


def _is_met(operator: str, value: str | None, expected: list[str]) -> bool:
    if operator.endswith(_IF_EXISTS):
        return value is None or _is_met(operator.removesuffix(_IF_EXISTS), value, expected)
    return _OPERATORS[operator](value, expected)


def _resolve(values: Any, context: Mapping[str, str]) -> list[str]:
    """Return values with their policy variables replaced, without those whose variable the request does not have."""
    texts = [str(value) for value in _as_list(values)]
    return [
        _VARIABLE.sub(lambda match: _require_literal(context[match[1]]), text)
        for text in texts
        if all(variable in context for variable in _VARIABLE.findall(text))
    ]


def _require_literal(value: str) -> str:
    """Return the value of a variable; raise ValueError if it could be taken for a pattern."""
    if "*" in value or "?" in value:
        raise ValueError(f"the value {value!r} of a policy variable has wildcards, which IAM does not treat as such")
    return value


def _equals(value: str | None, allowed: list[str]) -> bool:
    return value is not None and value in allowed


def _is_bool(value: str | None, expected: list[str]) -> bool:
    # JSON has booleans of its own, which policies may use.
    return _equals(value, [text.lower() for text in expected])


def _is_like(value: str | None, allowed: list[str]) -> bool:
    return value is not None and any(_matches(pattern, value) for pattern in allowed)


def _differs(value: str | None, denied: list[str]) -> bool:
    return not _equals(value, denied)


def _is_unlike(value: str | None, denied: list[str]) -> bool:
    return not _is_like(value, denied)


def _is_null(value: str | None, expected: list[str]) -> bool:
    return [str(value is None).lower()] == [text.lower() for text in expected]


# A condition on a key that the call does not have is not met, unless it is negated.
_OPERATORS = {
    "StringEquals": _equals,
    "StringNotEquals": _differs,
    "Bool": _is_bool,
    "StringLike": _is_like,
    "StringNotLike": _is_unlike,
    "ArnEquals": _is_like,
    "ArnLike": _is_like,
    "ArnNotEquals": _is_unlike,
    "ArnNotLike": _is_unlike,
    "Null": _is_null,
}
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
_IF_EXISTS = "IfExists"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(pattern: str, text: str) -> bool:
    return _compile(pattern).fullmatch(text) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern), re.DOTALL)
