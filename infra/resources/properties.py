"""The properties that Pulumi passes to a provider, and how to compare them when some are not available yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pulumi.output import Unknown

Properties = dict[str, Any]


def changed(olds: Mapping[str, Any], news: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Return the keys whose values differ; a value that a preview does not have yet counts as unchanged."""
    return [key for key in keys if not unknown(news.get(key)) and olds.get(key) != news.get(key)]


def changed_or_unknown(olds: Mapping[str, Any], news: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Return the keys whose values differ; one that is not available yet comes from a resource that is replaced."""
    return [key for key in keys if unknown(news.get(key)) or olds.get(key) != news.get(key)]


def unknown(value: object) -> bool:
    """Return whether a value, or a part of it, is not available before the resources exist."""
    if isinstance(value, dict):
        return any(unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(unknown(item) for item in value)
    return isinstance(value, Unknown)
