"""Property bags as Pulumi hands them to a provider: what differs between two, leaving out what is not known yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pulumi.output import Unknown

Properties = dict[str, Any]


def changed(olds: Mapping[str, Any], news: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """The keys whose values differ. A value that a preview does not know yet counts as unchanged."""
    return [key for key in keys if not unknown(news.get(key)) and olds.get(key) != news.get(key)]


def unknown(value: object) -> bool:
    if isinstance(value, dict):
        return any(unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(unknown(item) for item in value)
    return isinstance(value, Unknown)
