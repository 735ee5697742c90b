"""`muster cost`: what the cluster costs, by part, before anything exists."""

from __future__ import annotations

from rich.table import Table

from infra.commands import screen
from infra.commands.account import NONE, account
from infra.commands.spec import valid_spec
from infra.commands.where import existing_stack
from infra.plan.aws.cost import HOURS_PER_MONTH, NOT_INCLUDED, Cost, Line
from infra.plan.aws.cost import cost as aws_cost
from infra.providers.problem import Problem
from infra.spec import ClusterSpec


def cost(name: str) -> None:
    spec = valid_spec(existing_stack(name), None)
    if spec.target != "aws":
        screen.out().print(sentence(spec), markup=False)
        return
    priced, source = _priced(spec)
    screen.out().print(parts_table(priced), "")
    for note in [source, *footnotes(priced)]:
        screen.say(note)
    screen.out().print()
    screen.out().print(sentence(spec, priced), markup=False)


def sentence(spec: ClusterSpec, priced: Cost | None = None) -> str:
    """One line for all targets; prices of AWS are data, so that its libraries are not loaded to say them."""
    if spec.target == "aws":
        priced = priced or aws_cost(spec)
        at_least = "at least " if priced.unpriced else ""
        return f"{at_least}{_range(priced.usd_per_hour_min, priced.usd_per_hour)} USD per hour on target aws"
    from infra.targets import target  # noqa: PLC0415  # Pulumi takes longer to load than this command runs

    return f"{target(spec.target).usd_per_hour(spec):.2f} USD per hour on target {spec.target}"


def parts_table(priced: Cost) -> Table:
    heads = ("part", "what", "count", "USD per hour", "USD per month", "note")
    table = screen.table(*heads, right=heads[2:5], wraps=("what", "note"))
    for line in priced.lines:
        table.add_row(line.part, line.what, _count(line), *_money(line.least, line.usd_per_hour), line.note)
    table.add_section()
    table.add_row("total", "", "", *_money(priced.usd_per_hour_min, priced.usd_per_hour), "", style="bold")
    return table


def footnotes(priced: Cost) -> list[str]:
    notes = []
    if any(line.open and line.usd_per_hour for line in priced.lines):
        notes.append("unverified: from experience, not looked up; ask aws.amazon.com/pricing where it matters")
    if priced.unpriced:
        notes.append(f"no price known: {', '.join(line.what for line in priced.unpriced)}; the total is too low by it")
    return [*notes, f"not included: {'; '.join(NOT_INCLUDED)}"]


def _priced(spec: ClusterSpec) -> tuple[Cost, str]:
    """What it costs, and where the prices of its instances are from: AWS today, or the dated table."""
    month = f"a month has {HOURS_PER_MONTH} hours"
    table = aws_cost(spec)
    dated = f"instance prices of {table.priced_on}, {spec.aws.region if spec.aws else ''}; {month}"
    try:
        found = account(spec)
    except Problem as bad:
        return table, f"{dated}; today's were not asked for: {bad}"
    if found is None:
        return table, f"{dated}; today's were not asked for: {NONE}"
    from infra.targets.aws.live_prices import SOURCE, live_prices  # noqa: PLC0415  # loads AWS's libraries

    with screen.out().status("asking AWS for prices"):
        live = live_prices(spec, found)
    if not live.known:
        return table, f"{dated}; today's could not be read ({live.problem})"
    some = f"; some are of {table.priced_on} ({live.problem})" if live.problem else ""
    told = f"instance prices of today, {live.on}, {found.region}, by the {SOURCE}{some}; {month}"
    return aws_cost(spec, live, live.on), told


def _count(line: Line) -> str:
    scales = line.count_min is not None and line.count_min != line.count
    return f"{line.count_min} to {line.count}" if scales else str(line.count)


def _money(least: float, most: float) -> tuple[str, str]:
    return _range(least, most), _range(least * HOURS_PER_MONTH, most * HOURS_PER_MONTH, digits=0)


def _range(least: float, most: float, digits: int = 2) -> str:
    low, high = f"{least:,.{digits}f}", f"{most:,.{digits}f}"
    return high if low == high else f"{low} to {high}"
