"""Issues as text, so that a test can compare exact messages."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.spec.issue import Issue


def format_issues(issues: Iterable[Issue]) -> list[str]:
    return [f"{i.level} {i.code} {i.where}: {i.message}; fix: {i.fix}" for i in issues]


def issue_codes(issues: Iterable[Issue]) -> list[tuple[str, str]]:
    return [(issue.level, issue.code) for issue in issues]
