"""One security rule: what it looks at, when it holds, and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Props = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    id: str
    types: tuple[str, ...]
    holds: Callable[[Props], bool]
    bad: tuple[tuple[str, Props], ...]
    """What it must find: a resource of each kind that breaks it."""
