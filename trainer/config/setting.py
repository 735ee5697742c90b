"""The declaration of one setting: a dataclass field with its meaning and bounds."""

from __future__ import annotations

from dataclasses import MISSING, field
from typing import Any


def setting(
    doc: str,
    default: Any = MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    is_path: bool = False,
) -> Any:
    """Declare a dataclass field with its meaning and, for numbers, its inclusive bounds; a path may start with ~."""
    metadata = {"doc": doc, "low": low, "high": high, "is_path": is_path}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
