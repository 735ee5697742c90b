"""What a monthly budget does, in numbers and in words."""

from __future__ import annotations

from cluster.spec import ClusterSpec

NOTIFY_AT_PERCENT = (50, 80, 100)
STOP_AT_PERCENT = 100


def stops(spec: ClusterSpec) -> bool:
    """Whether launches end with the money: AWS wants somebody to tell about that."""
    return spec.budget.usd_per_month is not None and bool(spec.budget.notify)


def sentence(spec: ClusterSpec) -> str:
    """Empty where the spec has no monthly budget."""
    budget = spec.budget
    if budget.usd_per_month is None:
        return ""
    limit = f"AWS Budget of {budget.usd_per_month:,.0f} USD a month, counted by the cluster's tag"
    if not budget.notify:
        return f"{limit}: counts, tells nobody; idle GPU nodes are stopped when it is spent"
    *first, last = (f"{percent}" for percent in NOTIFY_AT_PERCENT)
    told = f"{', '.join(budget.notify)} told at {', '.join(first)} and {last} %"
    return f"{limit}: {told}; at {STOP_AT_PERCENT} % no node is launched any more and idle GPU nodes are stopped"
