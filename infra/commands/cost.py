"""`muster cost`: what the cluster costs, by part, before anything exists."""

from __future__ import annotations

from rich.table import Table

from infra.commands import screen
from infra.commands.spec import valid_spec
from infra.commands.where import existing_stack
from infra.plan.aws.cost import HOURS_PER_MONTH, NOT_INCLUDED, Cost, Line
from infra.plan.aws.cost import cost as aws_cost
from infra.spec import ClusterSpec


def cost(name: str) -> None:
    spec = valid_spec(existing_stack(name), None)
    if spec.target == "aws":
        _parts(spec, aws_cost(spec))
    screen.out().print(sentence(spec), markup=False)


def sentence(spec: ClusterSpec) -> str:
    """One line for all targets; prices of AWS are data, so that its libraries are not loaded to say them."""
    if spec.target == "aws":
        priced = aws_cost(spec)
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


def footnotes(spec: ClusterSpec, priced: Cost) -> list[str]:
    region = spec.aws.region if spec.aws else ""
    notes = [f"instance prices of {priced.priced_on}, {region}; a month has {HOURS_PER_MONTH} hours"]
    if any(line.open and line.usd_per_hour for line in priced.lines):
        notes.append("unverified: from experience, not looked up; ask aws.amazon.com/pricing where it matters")
    if priced.unpriced:
        notes.append(f"no price known: {', '.join(line.what for line in priced.unpriced)}; the total is too low by it")
    return [*notes, f"not included: {'; '.join(NOT_INCLUDED)}"]


def _parts(spec: ClusterSpec, priced: Cost) -> None:
    screen.out().print(parts_table(priced), "")
    for note in footnotes(spec, priced):
        screen.say(note)
    screen.out().print()


def _count(line: Line) -> str:
    scales = line.count_min is not None and line.count_min != line.count
    return f"{line.count_min} to {line.count}" if scales else str(line.count)


def _money(least: float, most: float) -> tuple[str, str]:
    return _range(least, most), _range(least * HOURS_PER_MONTH, most * HOURS_PER_MONTH, digits=0)


def _range(least: float, most: float, digits: int = 2) -> str:
    low, high = f"{least:,.{digits}f}", f"{most:,.{digits}f}"
    return high if low == high else f"{low} to {high}"
