"""What a monthly budget does: at which percentages it sends e-mails, and when it stops launches."""

from __future__ import annotations

from cluster.spec import ClusterSpec

NOTIFY_AT_PERCENT = (50, 80, 100)
STOP_AT_PERCENT = 100


def stops(spec: ClusterSpec) -> bool:
    """Return whether launches stop when the budget is spent; AWS requires an address to notify for that."""
    return spec.budget.usd_per_month is not None and bool(spec.budget.notify)


def describe(spec: ClusterSpec) -> str:
    """Return what the budget does as a sentence; empty if the spec has no monthly budget."""
    budget = spec.budget
    if budget.usd_per_month is None:
        return ""
    limit = f"AWS Budget of {budget.usd_per_month:,.0f} USD a month, counted by the cluster's tag"
    if not budget.notify:
        return f"{limit}: notifies nobody; idle GPU nodes are stopped when it is spent"
    *first, last = map(str, NOTIFY_AT_PERCENT)
    notified = f"{', '.join(budget.notify)} notified at {', '.join(first)} and {last} %"
    return f"{limit}: {notified}; at {STOP_AT_PERCENT} % no more nodes are launched and idle GPU nodes are stopped"
