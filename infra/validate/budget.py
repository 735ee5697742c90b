"""Rules on the budget."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error


def check_order(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a total budget that is less than the budget of one hour."""
    hourly, total = spec.budget.usd_per_hour, spec.budget.usd_total
    if hourly is not None and total is not None and total < hourly:
        message = f"{total:g} does not last one hour at usd_per_hour ({hourly:g}); allowed: {hourly:g} or more"
        yield error("budget_order", "budget.usd_total", message, "raise usd_total, or lower usd_per_hour")
