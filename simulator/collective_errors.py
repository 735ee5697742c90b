"""How far the model is from measured collectives, by system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import median

from simulator.collective_rows import question
from simulator.row_values import RowError

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


def errors_by_system(rows: Iterable[Mapping[str, str]]) -> dict[str, Errors]:
    """Relative errors of each system, and of all of them under `all`."""
    found: dict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        if not row["time_us"] or float(row["bytes"] or 0) < LEAST_BYTES:
            continue
        wrong = _error(row)
        found[row["system"]].append(wrong)
        found["all"].append(wrong)
    whole = found.pop("all", [])
    return {name: _summary(wrong) for name, wrong in [*sorted(found.items()), ("all", whole)]}


def table(errors: Mapping[str, Errors]) -> str:
    head = f"{'system':28} {'rows':>5} {'answered':>8} {'median %':>9} {'p90 %':>7} {'bias %':>7}"
    lines = [
        f"{name:28} {e.rows:5} {e.answered:8} {100 * e.median:9.1f} {100 * e.p90:7.1f} {100 * e.bias:+7.1f}"
        for name, e in errors.items()
    ]
    return "\n".join([head, *lines])


def _error(row: Mapping[str, str]) -> float | None:
    try:
        return question(row).time_us / float(row["time_us"]) - 1
    except RowError:
        return None


def _summary(errors: list[float | None]) -> Errors:
    known = [error for error in errors if error is not None]
    if not known:
        return Errors(len(errors), 0, float("nan"), float("nan"), float("nan"))
    sizes = sorted(abs(error) for error in known)
    p90 = sizes[ceil(0.9 * len(sizes)) - 1]
    return Errors(len(errors), len(known), median(sizes), p90, sum(known) / len(known))
