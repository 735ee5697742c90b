"""Findings as lines, so that a test holds every word of them."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.spec.issue import Issue


def words(issues: Iterable[Issue]) -> list[str]:
    return [f"{i.level} {i.code} {i.where}: {i.message}; fix: {i.fix}" for i in issues]


def codes(issues: Iterable[Issue]) -> list[tuple[str, str]]:
    return [(issue.level, issue.code) for issue in issues]
