"""The cost of rented things as items, of which some may have no price. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from infra.targets.cost import Cost, Line

NOT_INCLUDED = ("traffic to the internet", "taxes")
UNKNOWN = "not in the price table"


@dataclass(frozen=True)
class Item:
    """Identical things that cost money."""

    part: str
    what: str
    count: int
    usd_per_hour: float | None = None
    """Of one; None if it is not known."""
    note: str = UNKNOWN
    resource: dict[str, Any] = field(default_factory=dict)
    """What the cloud is asked for today's price; empty if it cannot be asked for this one."""


def add_up(items: Sequence[Item], on: date, page: str) -> Cost:
    """Return the cost of items; those without a price, or with one that may be wrong, are marked as open."""
    lines = tuple(
        Line(item.part, item.what, item.count, item.count * (item.usd_per_hour or 0.0), item.note, open=bool(item.note))
        for item in items
    )
    return Cost(lines, on, NOT_INCLUDED, page)
