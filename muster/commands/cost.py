"""`muster cost`: what the cluster costs, by part, before anything exists."""

from __future__ import annotations

from rich.table import Table

from cluster.spec import ClusterSpec
from infra.resources.problem import Problem
from infra.targets.aws.account import NONE, account
from infra.targets.aws.cost import HOURS_PER_MONTH, NOT_INCLUDED, Cost, Line
from infra.targets.aws.cost import cost as aws_cost
from infra.targets.aws.priced import Priced, by_aws, by_table
from infra.targets.aws.validate.budget import BY_PRICE
from muster.commands import screen
from muster.commands.spec import examined, usable
from muster.commands.where import existing_stack


def cost(name: str) -> None:
    stack = existing_stack(name)
    spec, issues = examined(stack, None)
    # What costs too much is shown all the same: here is where to look which part it is.
    spec = usable(stack, spec, [issue for issue in issues if spec is None or issue.code not in BY_PRICE])
    if spec.target != "aws":
        screen.out().print(sentence(spec), markup=False)
        return
    priced = _priced(spec)
    screen.out().print(parts_table(priced.cost), "")
    for note in [f"{priced.source}; a month has {HOURS_PER_MONTH} hours", *footnotes(priced.cost)]:
        screen.say(note)
    screen.out().print()
    screen.out().print(sentence(spec, priced.cost), markup=False)


def sentence(spec: ClusterSpec, priced: Cost | None = None) -> str:
    """One line for all targets; prices of AWS are data, so that its libraries are not loaded to say them."""
    if spec.target == "aws":
        priced = priced or aws_cost(spec)
        at_least = "at least " if priced.unpriced else ""
        return f"{at_least}{usd(priced)} USD per hour on target aws"
    from infra.targets.registry import target  # noqa: PLC0415  # Pulumi takes longer to load than this command runs

    return f"{target(spec.target).usd_per_hour(spec):.2f} USD per hour on target {spec.target}"


def usd(priced: Cost) -> str:
    """Of an hour, least and most."""
    return _range(priced.usd_per_hour_min, priced.usd_per_hour)


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


def _priced(spec: ClusterSpec) -> Priced:
    try:
        found = account(spec)
    except Problem as bad:
        return by_table(spec, f"were not asked for: {bad}")
    return by_aws(spec, found) if found else by_table(spec, f"were not asked for: {NONE}")


def _count(line: Line) -> str:
    scales = line.count_min is not None and line.count_min != line.count
    return f"{line.count_min} to {line.count}" if scales else str(line.count)


def _money(least: float, most: float) -> tuple[str, str]:
    return _range(least, most), _range(least * HOURS_PER_MONTH, most * HOURS_PER_MONTH, digits=0)


def _range(least: float, most: float, digits: int = 2) -> str:
    low, high = f"{least:,.{digits}f}", f"{most:,.{digits}f}"
    return high if low == high else f"{low} to {high}"
