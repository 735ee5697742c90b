"""Compare predicted collectives with measured ones, in the fit and with a system or source left out of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, nan
from statistics import median
from typing import Literal

from simulator.collectives import Group, Op
from simulator.collectives.constants import Constants, parse_constants
from simulator.collectives.group import LaunchOverhead
from simulator.fit.collectives import MeasuredCollective, collective_errors, fit_constants
from simulator.hardware.system import System
from simulator.rows.cells import RowError
from simulator.rows.collective_table import parse_collective_row

MIN_BYTES = 1_000_000
"""Smaller messages are dominated by start-up: launch overhead and process placement decide, not links."""

GroupKey = Literal["system", "source"]
GROUP_NAMES: dict[GroupKey, Callable[[MeasuredCollective], str]] = {
    "system": lambda measured: measured.system.name,
    "source": lambda measured: measured.source,
}
CODE_HOSTS = ("GitHub", "source")
"""Values of the source column that name a hosting site instead of a publisher."""
NAME_COLUMNS = 40


@dataclass(frozen=True)
class CollectiveErrors:
    """Relative errors of the model on the rows of one system."""

    rows: int
    """Rows with a measured time and at least MIN_BYTES."""
    answered: int
    """Rows that the model could predict."""
    median: float
    p90: float
    bias: float
    """Mean signed error: above 0 the model is slower than the measurement."""
    why: str = ""
    """The missing or invalid cell of the first row without a prediction."""


def errors_by_system(rows: Iterable[Mapping[str, str]]) -> dict[str, CollectiveErrors]:
    """Return the relative errors of each system, and of all systems under `all`."""
    errors: dict[str, list[float | str]] = defaultdict(list)
    for row in rows:
        if measured_us(row) and _positive_number(row, "bytes") >= MIN_BYTES:
            errors[row.get("system") or row.get("gpu_type") or "not named"].append(_row_error(row))
    all_errors = [error for own_errors in errors.values() for error in own_errors]
    return {name: _summarize(own_errors) for name, own_errors in [*sorted(errors.items()), ("all", all_errors)]}


def measured_us(row: Mapping[str, str]) -> float:
    """Return the measured microseconds of a row, 0 if the cell is empty or invalid."""
    return _positive_number(row, "time_us")


def collective_error_table(errors: Mapping[str, CollectiveErrors]) -> str:
    """Render one line per system."""
    head = f"{'system':28} {'rows':>5} {'answered':>8} {'median %':>9} {'p90 %':>7} {'bias %':>7}"
    return "\n".join([head, *(_error_line(name, own_errors) for name, own_errors in errors.items())])


def group_measured_rows(rows: Iterable[Mapping[str, str]]) -> list[MeasuredCollective]:
    """Group the rows of each collective on each system into one curve; skip rows that the model cannot predict."""
    curves: dict[tuple[Op, Group, System, LaunchOverhead, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        try:
            query = parse_collective_row(row)
        except RowError:
            continue
        if (time_us := measured_us(row)) and query.size >= MIN_BYTES:
            key = (query.op, query.group, query.system, query.launch, publisher_of(row))
            curves[key].append((query.size, time_us))
    return [
        MeasuredCollective(
            op, group, system, tuple(size for size, _ in points), tuple(us for _, us in points), launch, publisher
        )
        for (op, group, system, launch, publisher), points in curves.items()
    ]


def publisher_of(row: Mapping[str, str]) -> str:
    """Return who published the row: the source column, or the reference if the column names a hosting site."""
    name = row.get("source", "")
    return row.get("source_ref", "") or name if name in CODE_HOSTS else name


def cross_validate(
    collectives: Sequence[MeasuredCollective],
    progress: Callable[[str], None] = lambda _: None,
    by: GroupKey = "system",
) -> dict[str, list[float]]:
    """Return the errors of each system or source, predicted with constants fitted to all the others."""
    errors = {}
    for number, (name, rows) in enumerate(groups := list(group_by(collectives, by).items()), 1):
        progress(f"without {name} ({number} of {len(groups)})")
        others = [measured for measured in collectives if GROUP_NAMES[by](measured) != name]
        errors[name] = errors_with_constants(rows, parse_constants(fit_constants(others)))
    progress("")
    return errors


def group_by(collectives: Sequence[MeasuredCollective], by: GroupKey = "system") -> dict[str, list[MeasuredCollective]]:
    """Group measured collectives by the name of their system or source."""
    groups: dict[str, list[MeasuredCollective]] = defaultdict(list)
    for measured in collectives:
        groups[GROUP_NAMES[by](measured)].append(measured)
    return groups


def errors_with_constants(collectives: Sequence[MeasuredCollective], constants: Constants) -> list[float]:
    """Return the relative errors of all points of the collectives."""
    return [error for measured in collectives for error in collective_errors(measured, constants)]


def cross_validation_table(
    seen: Mapping[str, Sequence[float]], unseen: Mapping[str, Sequence[float]], by: GroupKey = "system"
) -> str:
    """Render errors inside the fit (`seen`) next to errors of the group left out of it (`unseen`)."""
    lines = [
        f"{'':{NAME_COLUMNS}} {'':>5}   in the fit       left out of the fit",
        f"{by:{NAME_COLUMNS}} {'rows':>5} {'median %':>9} {'p90 %':>6} {'median %':>9} {'p90 %':>6} {'bias %':>7}",
        *(_cross_validation_line(name, seen[name], unseen[name]) for name in sorted(seen)),
        _cross_validation_line(
            "all", [e for errors in seen.values() for e in errors], [e for errors in unseen.values() for e in errors]
        ),
    ]
    return "\n".join(lines)


def _error_line(name: str, errors: CollectiveErrors) -> str:
    counts = f"{name:28} {errors.rows:5} {errors.answered:8}"
    if not errors.answered:
        return f"{counts} {'-':>9} {'-':>7} {'-':>7}  no answer: {errors.why}"
    return f"{counts} {100 * errors.median:9.1f} {100 * errors.p90:7.1f} {100 * errors.bias:+7.1f}"


def _positive_number(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row.get(name) or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < inf else 0.0


def _row_error(row: Mapping[str, str]) -> float | str:
    """Return the relative error of a row, or the cell that prevents a prediction."""
    try:
        return parse_collective_row(row).time_us / measured_us(row) - 1
    except RowError as error:
        return str(error).partition(";")[0]


def _summarize(errors: list[float | str]) -> CollectiveErrors:
    numbers = [error for error in errors if not isinstance(error, str)]
    why = next((error for error in errors if isinstance(error, str)), "")
    if not numbers:
        return CollectiveErrors(len(errors), 0, nan, nan, nan, why)
    middle, p90 = _median_and_p90(numbers)
    return CollectiveErrors(len(errors), len(numbers), middle, p90, sum(numbers) / len(numbers), why)


def _cross_validation_line(name: str, seen: Sequence[float], unseen: Sequence[float]) -> str:
    half = NAME_COLUMNS // 2
    short_name = name if len(name) <= NAME_COLUMNS else f"{name[: half - 2]}...{name[-half + 1 :]}"
    figures = [100 * value for errors in (seen, unseen) for value in _median_and_p90(errors)]
    bias = 100 * sum(unseen) / len(unseen)
    numbers = " ".join(f"{value:{width}.1f}" for value, width in zip(figures, (9, 6, 9, 6), strict=True))
    return f"{short_name:{NAME_COLUMNS}} {len(seen):5} {numbers} {bias:+7.1f}"


def _median_and_p90(errors: Sequence[float]) -> tuple[float, float]:
    sizes = sorted(abs(error) for error in errors)
    return median(sizes), sizes[ceil(0.9 * len(sizes)) - 1]
