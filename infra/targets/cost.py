"""What a cluster costs: the table that every target's `cost` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from cluster.catalog.prices import HOURS_PER_MONTH


@dataclass(frozen=True)
class Line:
    """A row of the cost table: a number of identical items (minimum and maximum) and their cost."""

    part: str
    """The property it comes from, as in the stack file."""
    what: str
    count: int
    """The most there can be."""
    usd_per_hour: float
    """At most, for all of them."""
    note: str = ""
    count_min: int | None = None
    """Fewer than `count` where the queue decides how many there are."""
    usd_per_hour_min: float | None = None
    """Where it differs from the most."""
    open: bool = False
    """The price is unknown or unverified, as the note says."""

    @property
    def least(self) -> float:
        return self.usd_per_hour if self.usd_per_hour_min is None else self.usd_per_hour_min


@dataclass(frozen=True)
class Cost:
    """The cost of a cluster by part; a target that costs nothing has no lines."""

    lines: tuple[Line, ...] = ()
    priced_on: date | None = None
    """The day of the price table."""
    not_included: tuple[str, ...] = ()
    """What the prices do not cover."""
    price_page: str = ""
    """Web page where unverified prices can be looked up; empty if there is none."""

    @property
    def usd_per_hour(self) -> float:
        """Return the maximum: every autoscaled node exists, bought in the most expensive way that is allowed."""
        return sum(line.usd_per_hour for line in self.lines)

    @property
    def usd_per_hour_min(self) -> float:
        return sum(line.least for line in self.lines)

    @property
    def usd_per_month(self) -> float:
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def usd_per_month_min(self) -> float:
        return self.usd_per_hour_min * HOURS_PER_MONTH

    @property
    def unpriced(self) -> tuple[Line, ...]:
        """Return the items whose price is unknown."""
        return tuple(line for line in self.lines if line.open and not line.usd_per_hour)


@dataclass(frozen=True)
class Quote:
    """A cost with the source of its prices."""

    cost: Cost
    source: str = ""
    today: bool = False
    """Whether the prices are today's, not those of the dated table."""
