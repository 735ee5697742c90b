"""An evaluator of IAM policies: an explicit denial wins, then an allowance, and everything else is denied.

It knows the operators that muster's policies use; any other raises, because guessing would hide a missing permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
    effects = {statement["Effect"] for statement in statements if _applies(statement, needed)}
    return "Allow" in effects and "Deny" not in effects


def _applies(statement: Statement, needed: Authorization) -> bool:
    return (
        any(_matches(pattern.lower(), needed.action.lower()) for pattern in _as_list(statement["Action"]))
        and any(_matches(pattern, needed.resource) for pattern in _resolve(statement["Resource"], needed.context))
        and all(
            _OPERATORS[operator](needed.context.get(key), _resolve(expected, needed.context))
            for operator, keys in (statement.get("Condition") or {}).items()
            for key, expected in keys.items()
        )
    )


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


def _is_like(value: str | None, allowed: list[str]) -> bool:
    return value is not None and any(_matches(pattern, value) for pattern in allowed)


def _differs(value: str | None, denied: list[str]) -> bool:
    return not _equals(value, denied)


# A condition on a key that the call does not have is not met, unless it is negated.
_OPERATORS = {
    "StringEquals": _equals,
    "StringNotEquals": _differs,
    "Bool": _equals,
    "StringLike": _is_like,
    "ArnEquals": _is_like,
    "ArnLike": _is_like,
}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(pattern: str, text: str) -> bool:
    return _compile(pattern).fullmatch(text) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern), re.DOTALL)
