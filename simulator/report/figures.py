"""The charts of a comparison. Blue is measured and orange is predicted, except in the split of a step by part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from simulator.report.compare import Both, Comparison, Row
from simulator.report.measured import PARTS
from trainer.report.picture import INK, Picture, draw_picture

BLUE, ORANGE = "#3b82c4", "#e69f00"
COLOURS = dict(zip(PARTS, ("#3b82c4", "#e69f00", "#d6502b", "#b0659d", "#9aa3ad"), strict=True))
NAMES = {"communication": "exposed communication"}
MARKERS = "osD^v"
LINEAR_AXIS_MAX_RATIO = 6
"""Largest ratio of rank counts for which the axis stays linear."""


def draw_charts(comparison: Comparison) -> list[Picture]:
    """Return the charts that the runs have figures for."""
    drawn = [draw_picture(name, title, partial(draw, comparison=comparison)) for name, title, draw in _DRAWINGS]
    return [picture for picture in drawn if picture is not None]


def _split(figure: Any, comparison: Comparison) -> str:
    rows = comparison.rows
    figure.set_size_inches(6.4, 1.1 + 0.62 * len(rows))
    axes = figure.subplots()
    axes.grid(axis="y", visible=False)
    unit, factor = ("s", 1.0) if max(row.run.step_s for row in rows) >= 1 else ("ms", 1e3)
    for place, row in enumerate(rows):
        for split, offset, faded in ((row.run.split, -0.19, False), (row.predicted.split, 0.19, True)):
            _bar(axes, place + offset, {part: factor * seconds for part, seconds in split.items()}, faded)
        step, low, high = (factor * v for v in (row.predicted.step_s, row.predicted.low_s, row.predicted.high_s))
        axes.errorbar(step, place + 0.19, xerr=[[step - low], [high - step]], color=INK, linewidth=0.9, capsize=2.5)
    places = [place + offset for place in range(len(rows)) for offset in (-0.19, 0.19)]
    axes.set_yticks(places, [text for row in rows for text in (f"{_label(row, comparison)}, measured", "predicted")])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} per step")
    axes.set_xlim(left=0)
    axes.tick_params(length=0)
    above: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.2}
    axes.legend(ncols=5, fontsize=8.5, columnspacing=1.1, handlelength=0.9, handletextpad=0.5, **above)
    return "The line on a predicted bar is its 80 % interval."


def _bar(axes: Any, place: float, split: dict[str, float], faded: bool) -> None:
    begin = 0.0
    for part in PARTS:
        length = split.get(part, 0.0)
        text = "_" if faded else NAMES.get(part, part)
        labelled = {*axes.get_legend_handles_labels()[1]}
        axes.barh(
            place, length, left=begin, height=0.34, color=COLOURS[part], alpha=0.5 if faded else 1.0,
            label="_" if text in labelled else text,
        )  # fmt: skip
        begin += length


def _efficiency(figure: Any, comparison: Comparison) -> str | None:
    if not comparison.scales:
        return None
    axes = _by_ranks(figure, comparison, "scaling efficiency, %", lambda row: row.efficiency, 100)
    axes.axhline(100, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(0, max(105.0, axes.get_ylim()[1]))
    row = comparison.largest
    return (
        f"Throughput of a rank over that of the smallest run: {row.efficiency.measured:.0%} measured and "
        f"{row.efficiency.predicted:.0%} predicted on {row.run.ranks} ranks. {_describe_work(comparison)}"
    )


def _speed_up(figure: Any, comparison: Comparison) -> str | None:
    if not comparison.scales:
        return None
    axes = _by_ranks(figure, comparison, "speed-up", lambda row: row.speed_up, 1)
    most = max(row.run.ranks for row in comparison.rows)
    least = min(row.run.ranks for row in comparison.rows)
    axes.plot([least, most], [least, most], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="ideal")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=9)
    row = comparison.largest
    return (
        f"{row.speed_up.measured:.2f}x measured and {row.speed_up.predicted:.2f}x predicted on {row.run.ranks} ranks, "
        f"in throughput; dashed: ideal, every rank adds as much as the first."
    )


def _communication(figure: Any, comparison: Comparison) -> str | None:
    if not comparison.scales or not any(row.communication for row in comparison.rows if row.run.ranks > 1):
        return None
    axes = _by_ranks(figure, comparison, "exposed communication, % of a step", lambda row: row.communication, 100)
    axes.set_ylim(bottom=0)
    return "Communication and waiting for other ranks that is not hidden behind compute, as a share of a step."


def _utilization(figure: Any, comparison: Comparison) -> str | None:
    if not comparison.scales or not any(row.mfu for row in comparison.rows):
        return None
    axes = _by_ranks(figure, comparison, "MFU, %", lambda row: row.mfu, 100)
    axes.set_ylim(bottom=0)
    return "Operations of the model relative to what the ranks could do at the peak that the runs name."


def _by_ranks(figure: Any, comparison: Comparison, y: str, value: Callable[[Row], Both | None], factor: float) -> Any:
    axes = figure.subplots()
    for number, rows in enumerate(comparison.series):
        points = [(row.run.ranks, both) for row in rows if (both := value(row)) is not None]
        ranks = [count for count, _ in points]
        name = f"{rows[0].name}, " if len(comparison.series) > 1 else ""
        marker = MARKERS[number % len(MARKERS)]
        predicted, measured = (
            [factor * getattr(both, side) for _, both in points] for side in ("predicted", "measured")
        )
        axes.plot(ranks, predicted, marker + "--", color=ORANGE, markerfacecolor="none", label=f"{name}predicted")
        axes.plot(ranks, measured, marker + "-", color=BLUE, label=f"{name}measured")
    numbers = sorted({row.run.ranks for row in comparison.rows})
    if len(numbers) > 1 and numbers[-1] / numbers[0] > LINEAR_AXIS_MAX_RATIO:
        axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(count) for count in numbers])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.12)
    axes.tick_params(length=0)
    axes.set(xlabel="ranks", ylabel=y)
    axes.legend(fontsize=9)
    return axes


def _label(row: Row, comparison: Comparison) -> str:
    count = f"{row.run.ranks} rank{'s' * (row.run.ranks > 1)}"
    names = {other.name for other in comparison.rows}
    return f"{row.name}, {count}" if len(names) > 1 else count


def _describe_work(comparison: Comparison) -> str:
    sizes = {row.run.config.batch.size for row in comparison.rows}
    if len(sizes) == 1:
        return "The batch is the same in all runs, so more ranks means less work for each."
    shares = {row.run.config.batch.size / row.run.ranks for row in comparison.rows}
    return "Every rank has the same work in all runs." if len(shares) == 1 else ""


_DRAWINGS: tuple[tuple[str, str, Callable[..., str | None]], ...] = (
    ("time-split", "Where a step goes", _split),
    ("efficiency", "Scaling efficiency", _efficiency),
    ("speed-up", "Speed-up", _speed_up),
    ("communication", "Exposed communication", _communication),
    ("utilisation", "Utilization", _utilization),
)
