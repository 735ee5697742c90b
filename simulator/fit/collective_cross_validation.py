"""How far collectives are from measured ones that took no part in the fit: systems, or sources, left out in turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Literal

from simulator.collectives import Group, Op
from simulator.collectives.constants import Constants, constants
from simulator.collectives.launch import Launch
from simulator.fit.collective_errors import LEAST_BYTES, measured_us
from simulator.fit.collectives import Measured, errors, fit
from simulator.hardware.system import System
from simulator.rows.collective_table import question
from simulator.rows.values import RowError

By = Literal["system", "source"]
NAMES: dict[By, Callable[[Measured], str]] = {"system": lambda one: one.system.name, "source": lambda one: one.source}
HOSTS = ("GitHub", "source")
WIDTH = 40


def measured(rows: Iterable[Mapping[str, str]]) -> list[Measured]:
    """Rows of one collective on one system together; what the model cannot answer is left out."""
    found: dict[tuple[Op, Group, System, Launch, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        try:
            asked = question(row)
        except RowError:
            continue
        if (time_us := measured_us(row)) and asked.size >= LEAST_BYTES:
            key = (asked.op, asked.group, asked.system, asked.launch, source(row))
            found[key].append((asked.size, time_us))
    return [
        Measured(op, group, system, tuple(p[0] for p in points), tuple(p[1] for p in points), launch, published)
        for (op, group, system, launch, published), points in found.items()
    ]


def source(row: Mapping[str, str]) -> str:
    """Who published it; a host of many is none, there the reference tells."""
    name = row.get("source", "")
    return row.get("source_ref", "") or name if name in HOSTS else name


def left_out(
    every: Sequence[Measured], progress: Callable[[str], None] = lambda _: None, by: By = "system"
) -> dict[str, list[float]]:
    """Errors of each system, or source, with constants that were fitted to all others."""
    found = {}
    for number, (name, rows) in enumerate(names := list(grouped(every, by).items()), 1):
        progress(f"without {name} ({number} of {len(names)})")
        others = [one for one in every if NAMES[by](one) != name]
        found[name] = errors_of(rows, constants(fit(others)))
    progress("")
    return found


def grouped(every: Sequence[Measured], by: By = "system") -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = defaultdict(list)
    for one in every:
        found[NAMES[by](one)].append(one)
    return found


def errors_of(every: Sequence[Measured], known: Constants) -> list[float]:
    return [error for one in every for error in errors(one, known)]


def table(seen: Mapping[str, Sequence[float]], unseen: Mapping[str, Sequence[float]], by: By = "system") -> str:
    """`seen` by constants that were fitted to all, `unseen` by those that were fitted to the others."""
    lines = [
        f"{'':{WIDTH}} {'':>5}   in the fit       left out of the fit",
        f"{by:{WIDTH}} {'rows':>5} {'median %':>9} {'p90 %':>6} {'median %':>9} {'p90 %':>6} {'bias %':>7}",
        *(_line(name, seen[name], unseen[name]) for name in sorted(seen)),
        _line("all", [e for row in seen.values() for e in row], [e for row in unseen.values() for e in row]),
    ]
    return "\n".join(lines)


def _line(name: str, seen: Sequence[float], unseen: Sequence[float]) -> str:
    short = name if len(name) <= WIDTH else f"{name[: WIDTH // 2 - 2]}...{name[-WIDTH // 2 + 1 :]}"
    figures = [100 * value for wrong in (seen, unseen) for value in _spread(wrong)]
    bias = 100 * sum(unseen) / len(unseen)
    numbers = " ".join(f"{value:{width}.1f}" for value, width in zip(figures, (9, 6, 9, 6), strict=True))
    return f"{short:{WIDTH}} {len(seen):5} {numbers} {bias:+7.1f}"


def _spread(wrong: Sequence[float]) -> tuple[float, float]:
    sizes = sorted(abs(error) for error in wrong)
    return median(sizes), sizes[ceil(0.9 * len(sizes)) - 1]
