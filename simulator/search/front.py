"""Time against money: the options that no other beats in both, and which of them is meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.search.option import Option


def front(options: Iterable[Option]) -> list[Option]:
    """From the fastest to the cheapest."""
    kept: list[Option] = []
    for one in sorted(options, key=lambda o: (o.outlook.wall_s, o.usd)):
        if not kept or one.usd < kept[-1].usd:
            kept.append(one)
    return kept


def chosen(options: Sequence[Option], deadline_s: float | None, budget_usd: float | None) -> Option | None:
    """The cheapest in time, or the fastest within the money; None where nothing meets what is asked."""
    meets = [
        one
        for one in options
        if (deadline_s is None or one.outlook.wall_s <= deadline_s) and (budget_usd is None or one.usd <= budget_usd)
    ]
    if deadline_s is not None:
        return min(meets, key=lambda one: one.usd, default=None)
    if budget_usd is not None:
        return min(meets, key=lambda one: one.outlook.wall_s, default=None)
    # Without either: where a tenth more money no longer buys a tenth less time.
    return min(meets, key=lambda one: one.usd * one.outlook.wall_s, default=None)
