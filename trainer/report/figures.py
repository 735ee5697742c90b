"""The charts of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

from trainer.report.attempts import PHASES, Attempt, list_attempts
from trainer.report.curve import Curve, find_not_finite, find_upper_limit, make_curve, needs_log_scale, smooth
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


def draw_pictures(run: Run) -> list[Picture]:
    """Draw the charts for which the run has data."""
    pictures = [draw_picture(name, title, partial(draw, run=run)) for name, title, draw in _DRAWINGS]
    return [picture for picture in pictures if picture is not None]


def _draw_loss(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, "loss")
    if not points.steps:
        return None
    axes = _add_axes(figure, "loss")
    is_smoothed = _plot(axes, points, BLUE)
    _mark_resumes(axes, run)
    not_finite = find_not_finite(run.lines, "loss")
    for step in not_finite[:50]:
        axes.axvline(step, color=RED, linewidth=0.8)
    parts = [f"{points.values[0]:.4g} at the start, {points.values[-1]:.4g} at the end"]
    parts += ["the darker line is a running mean"] if is_smoothed else []
    parts += [f"NaN or infinite in {len(not_finite)} recorded steps (red)"] if not_finite else []
    return _make_sentence([*parts, *_note_resumes(run)])


def _draw_evaluation(figure: Any, run: Run) -> str | None:
    points = make_curve(run.evaluations, "loss")
    if not points.steps:
        return None
    axes = _add_axes(figure, "loss")
    training = make_curve(run.lines, "loss")
    axes.plot(training.steps, training.values, color=BLUE, alpha=0.35, linewidth=0.9, label="training")
    axes.plot(points.steps, points.values, color=ORANGE, marker="o", markersize=3, label="evaluation")
    if needs_log_scale([*training.values, *points.values]):
        axes.set_yscale("log")
    _mark_resumes(axes, run)
    _legend_above(axes)
    last, best = run.evaluations[-1], min(zip(points.values, points.steps, strict=True))
    parts = [f"{points.values[-1]:.4g} on {last.get('samples', 0):,} held-out samples at the end"]
    parts += [f"lowest {best[0]:.4g} at step {best[1]:.0f}"]
    parts += [f"accuracy {last['accuracy']:.1%}"] if "accuracy" in last else []
    parts += [f"perplexity {last['perplexity']:.4g}"] if "perplexity" in last else []
    return _make_sentence([*parts, *_note_resumes(run)])


def _draw_gradient_norm(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, "grad_norm")
    if not points.steps:
        return None
    axes = _add_axes(figure, "gradient norm")
    _plot(axes, points, GREEN)
    _mark_resumes(axes, run)
    parts = [f"global norm before clipping, median {median(points.values):.3g}"]
    limit = (run.config.get("optimizer") or {}).get("clip_norm")
    if limit:
        axes.axhline(limit, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        above = sum(value > limit for value in points.values) / len(points.values)
        parts.append(f"clipped at {limit:g} (dashed) in {above:.0%} of the points")
    return _make_sentence(parts)


def _draw_throughput(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, f"{run.unit}_per_s")
    if not points.steps:
        return None
    axes = _add_axes(figure, f"{run.unit} per second")
    axes.plot(points.steps, points.values, color=BLUE)
    axes.set_ylim(0, max(points.values) * 1.12)
    axes.yaxis.set_major_formatter(_engineering_format())
    _mark_resumes(axes, run)
    parts = [f"median {median(points.values):,.0f} {run.unit} per second"]
    ratios = [line["mfu"] / line[f"{run.unit}_per_s"] for line in run.lines if line.get("mfu")]
    peak = (run.events_of("peak") or [{}])[-1]
    if ratios and peak:
        ratio = 100 * ratios[-1]
        right = axes.secondary_yaxis("right", functions=(lambda rate: rate * ratio, lambda mfu: mfu / ratio))
        right.set_ylabel("MFU, %")
        right.tick_params(length=0, pad=7)
        parts.append(f"MFU is relative to {peak['peak'] / 1e12:,.4g} TFLOP/s per rank ({peak['source']})")
    return _make_sentence(parts)


def _draw_split(figure: Any, run: Run) -> str | None:
    curves = {part: make_curve(run.lines, f"{part}_s", 1000) for part in PARTS}
    curves = {part: points for part, points in curves.items() if points.steps}
    steps = max((points.steps for points in curves.values()), key=len, default=[])
    if not steps:
        return None
    axes = _add_axes(figure, "ms per step")
    # Communication is measured only from some step on: before that it is part of compute.
    rows = [[0.0] * (len(steps) - len(points.values)) + points.values for points in curves.values()]
    names = ["exposed communication" if part == "communication" else part for part in curves]
    axes.stackplot(steps, rows, labels=names, colors=[PART_COLOURS[part] for part in curves], linewidth=0)
    axes.margins(x=0)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    limit = find_upper_limit(totals)
    axes.set_ylim(0, limit or max(totals) * 1.05)
    _legend_above(axes)
    source = run.lines[-1].get("communication_from", "not measured")
    parts = [f"communication: {source}" + (", so it is part of compute" if source == "not measured" else "")]
    parts += ["longer steps are cut off at the top"] if limit else []
    return _make_sentence(parts)


def _draw_memory(figure: Any, run: Run) -> str | None:
    curves = {rank: make_curve(lines, "memory_gb") for rank, lines in run.ranks.items()}
    curves = {rank: points for rank, points in curves.items() if points.steps}
    if not curves:
        return None
    axes = _add_axes(figure, "GB")
    fullest = max(curves, key=lambda rank: max(curves[rank].values))
    for rank, points in list(curves.items())[:64]:
        if rank != fullest:
            axes.plot(points.steps, points.values, color=GREY, alpha=0.6, linewidth=1)
    axes.plot(curves[fullest].steps, curves[fullest].values, color=PURPLE)
    axes.set_ylim(0, max(curves[fullest].values) * 1.15)
    where = f"most on rank {fullest}" if len(curves) > 1 else f"rank {fullest}"
    others = ["grey: the other ranks"] if len(curves) > 1 else []
    return _make_sentence([f"{where}: {max(curves[fullest].values):.2f} GB", *others])


def _draw_ranks(figure: Any, run: Run) -> str | None:
    times = {r: [1000 * v["own_s"] for v in ls[len(ls) // 2 :] if "own_s" in v] for r, ls in run.ranks.items()}
    times = {rank: values for rank, values in times.items() if values}
    if len(times) < 2:  # noqa: PLR2004
        return None
    medians = {rank: median(values) for rank, values in times.items()}
    typical = median(medians.values())
    factor = float((run.config.get("watchdog") or {}).get("straggler", 1.3))
    axes = _add_axes(figure, "ms per step", x="rank")
    for rank, values in times.items():
        low, *_, high = quantiles(values, n=10) if len(values) > 1 else (values[0], values[0])
        is_slow = medians[rank] > factor * typical
        axes.plot([rank, rank], [low, high], color=RED if is_slow else GREY, linewidth=2, alpha=0.7)
        axes.plot([rank], [medians[rank]], "o", markersize=5, color=RED if is_slow else BLUE)
    axes.axhline(factor * typical, color=RED, linewidth=0.9, linestyle=(0, (4, 3)))
    top = max(*map(max, times.values()), factor * typical)
    axes.set_ylim(0, top * 1.1)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(_integer_ticks())
    has_communication = any(line.get("communication_s") is not None for line in run.lines)
    quantity = (
        "time without waiting for other ranks" if has_communication else "whole step (communication was not measured)"
    )
    slowest = max(medians, key=lambda rank: medians[rank])
    return _make_sentence(
        [
            f"{quantity}: median and the middle 80 %",
            f"rank {slowest} is slowest, {medians[slowest] / typical:.2f}x the median rank",
            f"a rank above the dashed line ({factor:g}x) is a straggler",
        ]
    )


def _draw_attempts(figure: Any, run: Run) -> str | None:
    attempts = list_attempts(run)
    if not attempts:
        return None
    shown = attempts[-12:]
    figure.set_size_inches(6.4, 1.3 + 0.36 * len(shown))
    axes = _add_axes(figure, "", x="seconds since the start")
    axes.grid(axis="y", visible=False)
    labelled: set[str] = set()
    for row, attempt in enumerate(shown):
        _draw_attempt(axes, row, attempt, labelled)
    axes.set_yticks(range(len(shown)), [f"start {attempt.number}" for attempt in shown])
    axes.invert_yaxis()
    axes.set_xlim(shown[0].began, shown[-1].ended + 0.01 * (shown[-1].ended - shown[0].began) + 0.1)
    _legend_above(axes, ("down", *PHASE_COLOURS, "training"))
    recoveries = [f"{attempt.down + attempt.start_up:.1f} s" for attempt in attempts[1:]][-12:]
    if not recoveries:
        return _make_sentence([f"one start, first step after {attempts[0].start_up:.1f} s"])
    return _make_sentence([f"time from the last record to the next step: {', '.join(recoveries)}"])


def _draw_attempt(axes: Any, row: int, attempt: Attempt, labelled: set[str]) -> None:
    def bar(start: float, length: float, name: str, colour: str) -> None:
        label = name if name not in labelled else "_"
        labelled.add(name)
        axes.barh(row, length, left=start, height=0.55, color=colour, label=label)

    if attempt.down:
        bar(attempt.began - attempt.down, attempt.down, "down", GRID)
    start = attempt.began
    for phase, seconds in attempt.phases.items():
        bar(start, seconds, phase, PHASE_COLOURS[phase])
        start += seconds
    if attempt.first_step_at is not None:
        bar(attempt.first_step_at, max(attempt.ended - attempt.first_step_at, 0), "training", GREEN)


_DRAWINGS: tuple[tuple[str, str, Callable[..., str | None]], ...] = (
    ("loss", "Loss", _draw_loss),
    ("evaluation", "Evaluation", _draw_evaluation),
    ("throughput", "Throughput", _draw_throughput),
    ("time-split", "Time per step by cause", _draw_split),
    ("gradient-norm", "Gradient norm", _draw_gradient_norm),
    ("memory", "Memory", _draw_memory),
    ("ranks", "Step time per rank", _draw_ranks),
    ("recovery", "Starts and recoveries", _draw_attempts),
)


def _add_axes(figure: Any, label: str, x: str = "step") -> Any:
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(label)
    axes.tick_params(length=0, which="both")
    axes.margins(x=0.01)
    return axes


def _plot(axes: Any, points: Curve, colour: str) -> bool:
    """Plot a curve and, if it has many points, its running mean; return whether it has."""
    is_smoothed = len(points.values) > 100  # noqa: PLR2004
    axes.plot(
        points.steps,
        points.values,
        color=colour,
        alpha=0.35 if is_smoothed else 1,
        linewidth=0.9 if is_smoothed else 1.6,
    )
    if is_smoothed:
        axes.plot(points.steps, smooth(points.values), color=colour)
    if needs_log_scale(points.values):
        axes.set_yscale("log")
        axes.grid(visible=True, which="minor", linewidth=0.3)
    return is_smoothed


def _mark_resumes(axes: Any, run: Run) -> None:
    for event in run.events_of("loaded"):
        if event.get("step"):
            axes.axvline(event["step"], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))


def _note_resumes(run: Run) -> list[str]:
    return (
        ["dotted: the run resumed from a checkpoint"]
        if any(event.get("step") for event in run.events_of("loaded"))
        else []
    )


def _legend_above(axes: Any, order: Sequence[str] = ()) -> None:
    pairs = list(zip(*axes.get_legend_handles_labels(), strict=True))
    pairs.sort(key=lambda pair: order.index(pair[1]) if pair[1] in order else -1)
    handles, labels = zip(*pairs, strict=True)
    style = {"fontsize": 9, "handlelength": 0.9, "handletextpad": 0.4, "columnspacing": 1.0, "borderaxespad": 0}
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=len(labels), **style)


def _engineering_format() -> Any:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - optional

    return EngFormatter(sep="")


def _integer_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - optional

    return MaxNLocator(integer=True)


def _make_sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
