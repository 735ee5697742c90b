"""Issues: errors and warnings about a spec, with their place and fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.plural import format_count

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Issue:
    """One error or warning about a spec."""

    level: Level
    code: str
    where: str
    """The property as it is written in the stack file (`groups.gpu.count`), or the place in the file."""
    message: str
    fix: str


class SpecError(Exception):
    """A spec that cannot be used, with all of its issues."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = list(issues)
        super().__init__(render(self.issues))


def error(code: str, where: str, message: str, fix: str) -> Issue:
    """Return an issue that stops `up`."""
    return Issue("error", code, where, message, fix)


def warning(code: str, where: str, message: str, fix: str) -> Issue:
    """Return an issue that does not stop `up`."""
    return Issue("warning", code, where, message, fix)


def render(issues: Sequence[Issue]) -> str:
    """Return three lines per issue, errors first, and the number of issues; an empty text if there are none."""
    if not issues:
        return ""
    ordered = sorted(issues, key=lambda issue: issue.level != "error")
    blocks = [f"{i.level:<8} {i.where}\n         {i.message}\n         fix: {i.fix}\n" for i in ordered]
    return "\n".join([*blocks, _count(issues)])


def _count(issues: Sequence[Issue]) -> str:
    errors = sum(issue.level == "error" for issue in issues)
    counts = {"error": errors, "warning": len(issues) - errors}
    return ", ".join(format_count(number, level) for level, number in counts.items() if number)
