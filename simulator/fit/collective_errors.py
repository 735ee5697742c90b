"""How far the model is from measured collectives, by system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, nan
from statistics import median

from simulator.rows.collective_table import question
from simulator.rows.values import RowError

LEAST_BYTES = 1_000_000
"""Smaller messages are all start-up: launching and how ranks are spread over processes decide, not links."""


@dataclass(frozen=True)
class Errors:
    rows: int
    """With a measured time, large enough to count."""
    answered: int
    median: float
    p90: float
    bias: float
    """Mean, with its sign: above 0 the model is slower than what was measured."""
    why: str = ""
    """What the first row lacks that has no answer."""


def errors_by_system(rows: Iterable[Mapping[str, str]]) -> dict[str, Errors]:
    """Relative errors of each system, and of all of them under `all`."""
    found: dict[str, list[float | str]] = defaultdict(list)
    for row in rows:
        if measured_us(row) and _figure(row, "bytes") >= LEAST_BYTES:
            found[row.get("system") or row.get("gpu_type") or "not named"].append(_error(row))
    whole = [wrong for own in found.values() for wrong in own]
    return {name: _summary(wrong) for name, wrong in [*sorted(found.items()), ("all", whole)]}


def measured_us(row: Mapping[str, str]) -> float:
    """0 where there is no time that could be one."""
    return _figure(row, "time_us")


def table(errors: Mapping[str, Errors]) -> str:
    head = f"{'system':28} {'rows':>5} {'answered':>8} {'median %':>9} {'p90 %':>7} {'bias %':>7}"
    return "\n".join([head, *(_line(name, e) for name, e in errors.items())])


def _line(name: str, e: Errors) -> str:
    begun = f"{name:28} {e.rows:5} {e.answered:8}"
    if not e.answered:
        return f"{begun} {'-':>9} {'-':>7} {'-':>7}  no answer: {e.why}"
    return f"{begun} {100 * e.median:9.1f} {100 * e.p90:7.1f} {100 * e.bias:+7.1f}"


def _figure(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row.get(name) or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < inf else 0.0


def _error(row: Mapping[str, str]) -> float | str:
    """Relative; or what the row lacks."""
    try:
        return question(row).time_us / measured_us(row) - 1
    except RowError as lacking:
        return str(lacking).partition(";")[0]


def _summary(errors: list[float | str]) -> Errors:
    known = [error for error in errors if not isinstance(error, str)]
    why = next((error for error in errors if isinstance(error, str)), "")
    if not known:
        return Errors(len(errors), 0, nan, nan, nan, why)
    sizes = sorted(abs(error) for error in known)
    p90 = sizes[ceil(0.9 * len(sizes)) - 1]
    return Errors(len(errors), len(known), median(sizes), p90, sum(known) / len(known), why)
