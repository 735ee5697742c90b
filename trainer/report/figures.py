"""The pictures of a run. Each is drawn once and comes out twice: PNG for a slide, SVG for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

from trainer.report.curve import Curve, ceiling, curve, is_wide, not_finite, smooth
from trainer.report.lives import PHASES, Life, lives
from trainer.report.picture import GRID, INK, Picture, draw_picture
from trainer.report.run_folder import Run
from trainer.report.summary import PARTS

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#3b82c4",
    "#e69f00",
    "#1a9e77",
    "#d6502b",
    "#b0659d",
    "#56b4e9",
    "#9aa3ad",
)
PART_COLOURS = {"compute": BLUE, "communication": ORANGE, "data": RED, "checkpoint": PURPLE, "other": GREY}
PHASE_COLOURS = dict(zip(PHASES.values(), (GREY, SKY, PURPLE, ORANGE, RED), strict=True))


def pictures(run: Run) -> list[Picture]:
    """Only those that the run has numbers for."""
    drawn = [draw_picture(name, title, partial(draw, run=run)) for name, title, draw in _DRAWINGS]
    return [picture for picture in drawn if picture is not None]


def _loss(figure: Any, run: Run) -> str | None:
    points = curve(run.lines, "loss")
    if not points.steps:
        return None
    axes = _axes(figure, "loss")
    rough = _plot(axes, points, BLUE)
    _mark_resumes(axes, run)
    broken = not_finite(run.lines, "loss")
    for step in broken[:50]:
        axes.axvline(step, color=RED, linewidth=0.8)
    parts = [f"{points.values[0]:.4g} at first, {points.values[-1]:.4g} at last"]
    parts += ["the strong line is a running mean"] if rough else []
    parts += [f"not a number in {len(broken)} recorded steps (red)"] if broken else []
    return _sentence([*parts, *_resume_note(run)])


def _gradient(figure: Any, run: Run) -> str | None:
    points = curve(run.lines, "grad_norm")
    if not points.steps:
        return None
    axes = _axes(figure, "gradient norm")
    _plot(axes, points, GREEN)
    _mark_resumes(axes, run)
    parts = [f"global norm before clipping, {median(points.values):.3g} in the middle"]
    limit = (run.config.get("optimizer") or {}).get("clip_norm")
    if limit:
        axes.axhline(limit, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        above = sum(value > limit for value in points.values) / len(points.values)
        parts.append(f"clipped at {limit:g} (dashed) in {above:.0%} of the points")
    return _sentence(parts)


def _throughput(figure: Any, run: Run) -> str | None:
    points = curve(run.lines, f"{run.unit}_per_s")
    if not points.steps:
        return None
    axes = _axes(figure, f"{run.unit} per second")
    axes.plot(points.steps, points.values, color=BLUE)
    axes.set_ylim(0, max(points.values) * 1.12)
    axes.yaxis.set_major_formatter(_engineering())
    _mark_resumes(axes, run)
    parts = [f"{median(points.values):,.0f} {run.unit} per second in the middle"]
    ratios = [line["mfu"] / line[f"{run.unit}_per_s"] for line in run.lines if line.get("mfu")]
    peak = (run.of("peak") or [{}])[-1]
    if ratios and peak:
        ratio = 100 * ratios[-1]
        right = axes.secondary_yaxis("right", functions=(lambda rate: rate * ratio, lambda mfu: mfu / ratio))
        right.set_ylabel("MFU, %")
        right.tick_params(length=0, pad=7)
        parts.append(f"MFU is relative to {peak['peak'] / 1e12:,.4g} TFLOP/s per rank ({peak['source']})")
    return _sentence(parts)


def _split(figure: Any, run: Run) -> str | None:
    known = {part: curve(run.lines, f"{part}_s", 1000) for part in PARTS}
    known = {part: points for part, points in known.items() if points.steps}
    steps = max((points.steps for points in known.values()), key=len, default=[])
    if not steps:
        return None
    axes = _axes(figure, "ms per step")
    # Communication may be known from some step on only: before that it is inside compute.
    rows = [[0.0] * (len(steps) - len(points.values)) + points.values for points in known.values()]
    names = ["exposed communication" if part == "communication" else part for part in known]
    axes.stackplot(steps, rows, labels=names, colors=[PART_COLOURS[part] for part in known], linewidth=0)
    axes.margins(x=0)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    cut = ceiling(totals)
    axes.set_ylim(0, cut or max(totals) * 1.05)
    _legend_above(axes)
    source = run.lines[-1].get("communication_from", "not measured")
    parts = [f"communication: {source}" + (", so it is inside compute" if source == "not measured" else "")]
    parts += ["steps above the edge are cut off"] if cut else []
    return _sentence(parts)


def _memory(figure: Any, run: Run) -> str | None:
    found = {rank: curve(lines, "memory_gb") for rank, lines in run.ranks.items()}
    found = {rank: points for rank, points in found.items() if points.steps}
    if not found:
        return None
    axes = _axes(figure, "GB")
    most = max(found, key=lambda rank: max(found[rank].values))
    for rank, points in list(found.items())[:64]:
        if rank != most:
            axes.plot(points.steps, points.values, color=GREY, alpha=0.6, linewidth=1)
    axes.plot(found[most].steps, found[most].values, color=PURPLE)
    axes.set_ylim(0, max(found[most].values) * 1.15)
    where = f"most on rank {most}" if len(found) > 1 else f"rank {most}"
    others = ["grey: the other ranks"] if len(found) > 1 else []
    return _sentence([f"{where}: {max(found[most].values):.2f} GB", *others])


def _ranks(figure: Any, run: Run) -> str | None:
    times = {r: [1000 * v["own_s"] for v in ls[len(ls) // 2 :] if "own_s" in v] for r, ls in run.ranks.items()}
    times = {rank: values for rank, values in times.items() if values}
    if len(times) < 2:  # noqa: PLR2004
        return None
    middles = {rank: median(values) for rank, values in times.items()}
    usual = median(middles.values())
    factor = float((run.config.get("watchdog") or {}).get("straggler", 1.3))
    axes = _axes(figure, "ms per step", x="rank")
    for rank, values in times.items():
        low, *_, high = quantiles(values, n=10) if len(values) > 1 else (values[0], values[0])
        slow = middles[rank] > factor * usual
        axes.plot([rank, rank], [low, high], color=RED if slow else GREY, linewidth=2, alpha=0.7)
        axes.plot([rank], [middles[rank]], "o", markersize=5, color=RED if slow else BLUE)
    axes.axhline(factor * usual, color=RED, linewidth=0.9, linestyle=(0, (4, 3)))
    top = max(*map(max, times.values()), factor * usual)
    axes.set_ylim(0, top * 1.1)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(_whole_numbers())
    known = any(line.get("communication_s") is not None for line in run.lines)
    without = "time without waiting for others" if known else "whole step, since communication was not measured"
    slowest = max(middles, key=lambda rank: middles[rank])
    return _sentence(
        [
            f"{without}: median and the middle 80 %",
            f"rank {slowest} is slowest, {middles[slowest] / usual:.2f}x the median rank",
            f"above the dashed line ({factor:g}x) a rank is a straggler",
        ]
    )


def _recovery(figure: Any, run: Run) -> str | None:
    found = lives(run)
    if not found:
        return None
    shown = found[-12:]
    figure.set_size_inches(6.4, 1.3 + 0.36 * len(shown))
    axes = _axes(figure, "", x="seconds since the start")
    axes.grid(axis="y", visible=False)
    seen: set[str] = set()
    for row, life in enumerate(shown):
        _draw_life(axes, row, life, seen)
    axes.set_yticks(range(len(shown)), [f"start {life.number}" for life in shown])
    axes.invert_yaxis()
    axes.set_xlim(shown[0].began, shown[-1].ended + 0.01 * (shown[-1].ended - shown[0].began) + 0.1)
    _legend_above(axes, ("down", *PHASE_COLOURS, "training"))
    again = [f"{life.down + life.start_up:.1f} s" for life in found[1:]][-12:]
    if not again:
        return _sentence([f"one start, first step after {found[0].start_up:.1f} s"])
    return _sentence([f"from the last sign of life to the next step: {', '.join(again)}"])


def _draw_life(axes: Any, row: int, life: Life, seen: set[str]) -> None:
    def bar(begin: float, length: float, name: str, colour: str) -> None:
        label = name if name not in seen else "_"
        seen.add(name)
        axes.barh(row, length, left=begin, height=0.55, color=colour, label=label)

    if life.down:
        bar(life.began - life.down, life.down, "down", GRID)
    moment = life.began
    for phase, seconds in life.phases.items():
        bar(moment, seconds, phase, PHASE_COLOURS[phase])
        moment += seconds
    if life.first_step_at is not None:
        bar(life.first_step_at, max(life.ended - life.first_step_at, 0), "training", GREEN)


_DRAWINGS: tuple[tuple[str, str, Callable[..., str | None]], ...] = (
    ("loss", "Loss", _loss),
    ("throughput", "Throughput", _throughput),
    ("time-split", "Where a step's time goes", _split),
    ("gradient-norm", "Gradient norm", _gradient),
    ("memory", "Memory", _memory),
    ("ranks", "Step time of each rank", _ranks),
    ("recovery", "Starts and recoveries", _recovery),
)


def _axes(figure: Any, label: str, x: str = "step") -> Any:
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(label)
    axes.tick_params(length=0, which="both")
    axes.margins(x=0.01)
    return axes


def _plot(axes: Any, points: Curve, colour: str) -> bool:
    """The curve, and a running mean over it where it has many points; whether it has."""
    rough = len(points.values) > 100  # noqa: PLR2004
    axes.plot(points.steps, points.values, color=colour, alpha=0.35 if rough else 1, linewidth=0.9 if rough else 1.6)
    if rough:
        axes.plot(points.steps, smooth(points.values), color=colour)
    if is_wide(points.values):
        axes.set_yscale("log")
        axes.grid(visible=True, which="minor", linewidth=0.3)
    return rough


def _mark_resumes(axes: Any, run: Run) -> None:
    for event in run.of("loaded"):
        if event.get("step"):
            axes.axvline(event["step"], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))


def _resume_note(run: Run) -> list[str]:
    return ["dotted: the run went on from a checkpoint"] if any(event.get("step") for event in run.of("loaded")) else []


def _legend_above(axes: Any, order: Sequence[str] = ()) -> None:
    pairs = list(zip(*axes.get_legend_handles_labels(), strict=True))
    pairs.sort(key=lambda pair: order.index(pair[1]) if pair[1] in order else -1)
    handles, labels = zip(*pairs, strict=True)
    style = {"fontsize": 9, "handlelength": 0.9, "handletextpad": 0.4, "columnspacing": 1.0, "borderaxespad": 0}
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=len(labels), **style)


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415

    return EngFormatter(sep="")


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(integer=True)


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
