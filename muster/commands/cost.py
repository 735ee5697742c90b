"""`muster cost`: print the cost of each part of a cluster before it is created."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from cluster.catalog.prices import HOURS_PER_MONTH
from cluster.spec import ClusterSpec
from infra.targets.cost import Cost, Line, Quote
from infra.targets.registry import target_of
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, list_price_issues, require_valid_spec
from muster.commands.stacks import require_stack_file

NO_LIMIT_COLUMNS = 10_000
"""Width at which no table wraps."""


def cost(name: str, *, as_json: bool = False) -> None:
    """Print the cost table of a stack."""
    stack = require_stack_file(name, offline=True)
    spec, issues = examine_spec(stack, None)
    # A cluster over its budget is shown too: the table shows which part is expensive.
    spec = require_valid_spec(
        stack, spec, [issue for issue in issues if spec is None or issue.code not in list_price_issues(spec)]
    )
    quote = target_of(spec).quote(spec, screen.get_quiet_console() if as_json else screen)
    if as_json:
        print(json.dumps(_as_json(spec, quote), indent=2))
        return
    if quote.cost.lines:
        table, notes = lay_out_cost_table(quote.cost, screen.out())
        screen.out().print(table, "")
        for note in [*notes, f"{quote.source}; a month has {HOURS_PER_MONTH} hours", *list_footnotes(quote.cost)]:
            screen.say(note)
        screen.out().print()
    screen.out().print(describe_cost(spec, quote.cost), markup=False)


def describe_cost(spec: ClusterSpec, cost: Cost | None = None) -> str:
    """Return the cost of a spec in one line; without `cost`, from the committed price table."""
    cost = cost or target_of(spec).cost(spec)
    at_least = "at least " if cost.unpriced else ""
    return f"{at_least}{format_usd_per_hour(cost)} USD per hour on target {spec.target}"


def _as_json(spec: ClusterSpec, quote: Quote) -> dict[str, Any]:
    """Return the cost as plain data; amounts in USD."""
    cost = quote.cost
    return {
        "cluster": spec.name,
        "target": spec.target,
        "usd_per_hour": {"min": round(cost.usd_per_hour_min, 4), "max": round(cost.usd_per_hour, 4)},
        "usd_per_month": {"min": round(cost.usd_per_month_min, 2), "max": round(cost.usd_per_month, 2)},
        "prices": quote.source,
        "lines": [_line_as_json(line) for line in cost.lines],
        "not_included": list(cost.not_included),
    }


def _line_as_json(line: Line) -> dict[str, Any]:
    return asdict(line) | {
        "usd_per_hour": round(line.usd_per_hour, 4),
        "count_min": line.count if line.count_min is None else line.count_min,
        "usd_per_hour_min": round(line.least, 4),
    }


def format_usd_per_hour(priced: Cost) -> str:
    """Return the cost per hour, as a range if the cluster scales."""
    return _range(priced.usd_per_hour_min, priced.usd_per_hour)


def lay_out_cost_table(priced: Cost, console: Console) -> tuple[Table, list[str]]:
    """Return the cost table, and the notes to print below it if the console is too narrow for them in the table."""
    table = build_cost_table(priced)
    unlimited = console.options.update(width=NO_LIMIT_COLUMNS)
    if Measurement.get(console, unlimited, table).maximum <= console.width:
        return table, []
    parts: dict[str, list[str]] = {}
    for line in priced.lines:
        if line.note:
            parts.setdefault(line.note, []).append(f"{line.part} ({line.what})")
    return build_cost_table(priced, notes=False), [f"{', '.join(lines)}: {note}" for note, lines in parts.items()]


def build_cost_table(priced: Cost, *, notes: bool = True) -> Table:
    """Return the table of the parts of a cluster with their cost."""
    heads = ("part", "what", "count", "USD per hour", "USD per month", *(["note"] if notes else []))
    table = screen.new_table(*heads, right=heads[2:5], wraps=("what", "note"))
    for line in priced.lines:
        money = ("?", "?") if line in priced.unpriced else _money(line.least, line.usd_per_hour)
        table.add_row(line.part, line.what, _count(line), *money, *([line.note] if notes else []))
    table.add_section()
    at_least = "at least" if priced.unpriced else ""
    table.add_row("total", at_least, "", *_money(priced.usd_per_hour_min, priced.usd_per_hour), style="bold")
    return table


def list_footnotes(priced: Cost) -> list[str]:
    """Return the notes below the cost table: uncertain and unknown prices, and what is not included."""
    notes = []
    uncertain = [line.note for line in priced.lines if line.open and line.usd_per_hour]
    check = f"; check them at {priced.price_page}" if priced.price_page else ""
    if any("unverified" in note for note in uncertain):
        notes.append(f"unverified: prices from experience, not looked up{check}")
    elif uncertain:
        notes.append(f"some prices may be wrong, as their notes say{check}")
    if priced.unpriced:
        notes.append(f"not in the total, without a known price: {'; '.join(line.what for line in priced.unpriced)}")
    return [*notes, f"not included: {'; '.join(priced.not_included)}"]


def _count(line: Line) -> str:
    scales = line.count_min is not None and line.count_min != line.count
    return f"{line.count_min} to {line.count}" if scales else str(line.count)


def _money(least: float, most: float) -> tuple[str, str]:
    return _range(least, most), _range(least * HOURS_PER_MONTH, most * HOURS_PER_MONTH, digits=0)


def _range(least: float, most: float, digits: int = 2) -> str:
    low, high = f"{least:,.{digits}f}", f"{most:,.{digits}f}"
    return high if low == high else f"{low} to {high}"
