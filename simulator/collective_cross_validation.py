"""How far collectives are from measured ones on systems that took no part in the fit: each is left out in turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from statistics import median

from simulator.collective_errors import LEAST_BYTES, measured_us
from simulator.collective_rows import question
from simulator.collectives import Group, Op
from simulator.collectives.constants import Constants, constants
from simulator.collectives.fit import Measured, errors, fit
from simulator.row_values import RowError
from simulator.system import System


def measured(rows: Iterable[Mapping[str, str]]) -> list[Measured]:
    """Rows of one collective on one system together; what the model cannot answer is left out."""
    found: dict[tuple[Op, Group, System, float], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        try:
            asked = question(row)
        except RowError:
            continue
        if (time_us := measured_us(row)) and asked.size >= LEAST_BYTES:
            key = (asked.op, asked.group, asked.system, asked.launch_us)
            found[key].append((asked.size, time_us))
    return [_measured(*key, points) for key, points in found.items()]


def left_out(every: Sequence[Measured], progress: Callable[[str], None] = lambda _: None) -> dict[str, list[float]]:
    """Errors of each system with constants that were fitted to all others."""
    found = {}
    for number, (system, rows) in enumerate(systems := list(by_system(every).items()), 1):
        progress(f"without {system} ({number} of {len(systems)})")
        others = [one for one in every if one.system.name != system]
        found[system] = errors_of(rows, constants(fit(others)))
    progress("")
    return found


def by_system(every: Sequence[Measured]) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = defaultdict(list)
    for one in every:
        found[one.system.name].append(one)
    return found


def errors_of(every: Sequence[Measured], known: Constants) -> list[float]:
    return [error for one in every for error in errors(one, known)]


def table(seen: Mapping[str, Sequence[float]], unseen: Mapping[str, Sequence[float]]) -> str:
    """`seen` by constants that were fitted to all, `unseen` by those that were fitted to the other systems."""
    lines = [
        f"{'':24} {'':>5}   in the fit       left out of the fit",
        f"{'system':24} {'rows':>5} {'median %':>9} {'p90 %':>6} {'median %':>9} {'p90 %':>6} {'bias %':>7}",
        *(_line(system, seen[system], unseen[system]) for system in sorted(seen)),
        _line("all", [e for row in seen.values() for e in row], [e for row in unseen.values() for e in row]),
    ]
    return "\n".join(lines)


def _measured(op: Op, group: Group, system: System, launch_us: float, points: list[tuple[float, float]]) -> Measured:
    return Measured(op, group, system, tuple(p[0] for p in points), tuple(p[1] for p in points), launch_us)


def _line(name: str, seen: Sequence[float], unseen: Sequence[float]) -> str:
    figures = [100 * value for wrong in (seen, unseen) for value in _spread(wrong)]
    bias = 100 * sum(unseen) / len(unseen)
    return (
        f"{name:24} {len(seen):5} {figures[0]:9.1f} {figures[1]:6.1f} {figures[2]:9.1f} {figures[3]:6.1f} {bias:+7.1f}"
    )


def _spread(wrong: Sequence[float]) -> tuple[float, float]:
    sizes = sorted(abs(error) for error in wrong)
    return median(sizes), sizes[ceil(0.9 * len(sizes)) - 1]
