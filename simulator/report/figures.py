"""The pictures of a comparison. Blue is measured, orange is predicted, everywhere but in the split by cause."""

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
FEW = 6


def pictures(found: Comparison) -> list[Picture]:
    """Only those that the runs have numbers for."""
    drawn = [draw_picture(name, title, partial(draw, found=found)) for name, title, draw in _DRAWINGS]
    return [picture for picture in drawn if picture is not None]


def _split(figure: Any, found: Comparison) -> str:
    rows = found.rows
    figure.set_size_inches(6.4, 1.1 + 0.62 * len(rows))
    axes = figure.subplots()
    axes.grid(axis="y", visible=False)
    unit, factor = ("s", 1.0) if max(row.run.step_s for row in rows) >= 1 else ("ms", 1e3)
    for place, row in enumerate(rows):
        for split, offset, faded in ((row.run.split, -0.19, False), (row.predicted.split, 0.19, True)):
            _bar(axes, place + offset, {part: factor * seconds for part, seconds in split.items()}, faded)
        said, low, high = (factor * v for v in (row.predicted.step_s, row.predicted.low_s, row.predicted.high_s))
        axes.errorbar(said, place + 0.19, xerr=[[said - low], [high - said]], color=INK, linewidth=0.9, capsize=2.5)
    places = [place + offset for place in range(len(rows)) for offset in (-0.19, 0.19)]
    axes.set_yticks(places, [text for row in rows for text in (f"{label(row, found)}, measured", "predicted")])
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
        known = {*axes.get_legend_handles_labels()[1]}
        axes.barh(
            place, length, left=begin, height=0.34, color=COLOURS[part], alpha=0.5 if faded else 1.0,
            label="_" if text in known else text,
        )  # fmt: skip
        begin += length


def _efficiency(figure: Any, found: Comparison) -> str | None:
    if not found.scales:
        return None
    axes = _by_ranks(figure, found, "scaling efficiency, %", lambda row: row.efficiency, 100)
    axes.axhline(100, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(0, max(105.0, axes.get_ylim()[1]))
    row = found.largest
    return (
        f"Throughput of a rank over that of the smallest run: {row.efficiency.measured:.0%} measured and "
        f"{row.efficiency.predicted:.0%} predicted on {row.run.ranks} ranks. {_work(found)}"
    )


def _speed_up(figure: Any, found: Comparison) -> str | None:
    if not found.scales:
        return None
    axes = _by_ranks(figure, found, "speed-up", lambda row: row.speed_up, 1)
    most = max(row.run.ranks for row in found.rows)
    least = min(row.run.ranks for row in found.rows)
    axes.plot([least, most], [least, most], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="ideal")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=9)
    row = found.largest
    return (
        f"{row.speed_up.measured:.2f}x measured and {row.speed_up.predicted:.2f}x predicted on {row.run.ranks} ranks, "
        f"in throughput; dashed: every rank adds as much as the first."
    )


def _communication(figure: Any, found: Comparison) -> str | None:
    if not found.scales or not any(row.communication for row in found.rows if row.run.ranks > 1):
        return None
    axes = _by_ranks(figure, found, "exposed communication, % of a step", lambda row: row.communication, 100)
    axes.set_ylim(bottom=0)
    return "Communication and waiting for other ranks that no compute hides, as a share of a step."


def _utilisation(figure: Any, found: Comparison) -> str | None:
    if not found.scales or not any(row.mfu for row in found.rows):
        return None
    axes = _by_ranks(figure, found, "MFU, %", lambda row: row.mfu, 100)
    axes.set_ylim(bottom=0)
    return "Operations of the model over what the ranks could do at the peak that the runs name."


def _by_ranks(figure: Any, found: Comparison, y: str, of: Callable[[Row], Both | None], factor: float) -> Any:
    axes = figure.subplots()
    for number, rows in enumerate(found.series):
        known = [(row.run.ranks, both) for row in rows if (both := of(row)) is not None]
        ranks = [count for count, _ in known]
        name = f"{rows[0].name}, " if len(found.series) > 1 else ""
        marker = MARKERS[number % len(MARKERS)]
        said, took = ([factor * getattr(both, side) for _, both in known] for side in ("predicted", "measured"))
        axes.plot(ranks, said, marker + "--", color=ORANGE, markerfacecolor="none", label=f"{name}predicted")
        axes.plot(ranks, took, marker + "-", color=BLUE, label=f"{name}measured")
    numbers = sorted({row.run.ranks for row in found.rows})
    if len(numbers) > 1 and numbers[-1] / numbers[0] > FEW:
        axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(count) for count in numbers])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.12)
    axes.tick_params(length=0)
    axes.set(xlabel="ranks", ylabel=y)
    axes.legend(fontsize=9)
    return axes


def label(row: Row, found: Comparison) -> str:
    count = f"{row.run.ranks} rank{'s' * (row.run.ranks > 1)}"
    names = {other.name for other in found.rows}
    return f"{row.name}, {count}" if len(names) > 1 else count


def _work(found: Comparison) -> str:
    sizes = {row.run.config.batch.size for row in found.rows}
    if len(sizes) == 1:
        return "The batch is the same in all runs, so a rank has less to do the more there are."
    shares = {row.run.config.batch.size / row.run.ranks for row in found.rows}
    return "Every rank has the same work in all runs." if len(shares) == 1 else ""


_DRAWINGS: tuple[tuple[str, str, Callable[..., str | None]], ...] = (
    ("time-split", "Where a step goes", _split),
    ("efficiency", "Scaling efficiency", _efficiency),
    ("speed-up", "Speed-up", _speed_up),
    ("communication", "Exposed communication", _communication),
    ("utilisation", "Utilisation", _utilisation),
)
