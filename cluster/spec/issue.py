"""A finding about a spec: where it is, what is wrong, what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Issue:
    level: Level
    code: str
    where: str
    """The property as it is written in the stack file (`groups.gpu.count`), or the place in the file."""
    message: str
    fix: str


class SpecError(Exception):
    """A spec that cannot be used; carries every problem that was found, not just the first."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = list(issues)
        super().__init__(render(self.issues))


def error(code: str, where: str, message: str, fix: str) -> Issue:
    return Issue("error", code, where, message, fix)


def warning(code: str, where: str, message: str, fix: str) -> Issue:
    return Issue("warning", code, where, message, fix)


def render(issues: Sequence[Issue]) -> str:
    """Three lines for each issue, errors first, and a count at the end; the empty text where there is none."""
    if not issues:
        return ""
    ordered = sorted(issues, key=lambda issue: issue.level != "error")
    blocks = [f"{i.level:<8} {i.where}\n         {i.message}\n         fix: {i.fix}\n" for i in ordered]
    return "\n".join([*blocks, _count(issues)])


def _count(issues: Sequence[Issue]) -> str:
    errors = sum(issue.level == "error" for issue in issues)
    words = [_plural(errors, "error"), _plural(len(issues) - errors, "warning")]
    return ", ".join(word for word in words if word)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""
