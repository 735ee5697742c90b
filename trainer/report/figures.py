"""The charts of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median, quantiles
from typing import Any

from trainer.report.attempts import PHASES, Attempt, list_attempts
from trainer.report.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    add_axes,
    legend_above,
    make_engineering_format,
    make_integer_ticks,
    make_label,
    make_sentence,
    mark_resumes,
    note_resumes,
    plot,
)
from trainer.report.curve import find_not_finite, find_upper_limit, make_curve, needs_log_scale
from trainer.report.picture import GRID, INK, Picture, draw_picture
from trainer.report.run_folder import Run
from trainer.report.summary import PARTS
from trainer.report.timeline import draw_timeline

PART_COLOURS = {"compute": BLUE, "communication": ORANGE, "data": RED, "checkpoint": PURPLE, "other": GREY}
SOURCE_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
PHASE_COLOURS = dict(zip(PHASES.values(), (GREY, SKY, PURPLE, ORANGE, RED), strict=True))

_SOURCE = "loss/"
"""Start of the names of metrics that are the losses of a mixture's data sets."""


def draw_pictures(run: Run) -> list[Picture]:
    """Draw the charts for which the run has data."""
    pictures = [draw_picture(name, title, partial(draw, run=run)) for name, title, draw in _DRAWINGS]
    return [picture for picture in pictures if picture is not None]


def _draw_loss(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, "loss")
    if not points.steps:
        return None
    axes = add_axes(figure, "loss")
    is_smoothed = plot(axes, points, BLUE)
    mark_resumes(axes, run)
    not_finite = find_not_finite(run.lines, "loss")
    for step in not_finite[:50]:
        axes.axvline(step, color=RED, linewidth=0.8)
    parts = [f"{points.values[0]:.4g} at the start, {points.values[-1]:.4g} at the end"]
    parts += ["the darker line is a running mean"] if is_smoothed else []
    parts += [f"NaN or infinite in {len(not_finite)} recorded steps (red)"] if not_finite else []
    return make_sentence([*parts, *note_resumes(run)])


def _draw_evaluation(figure: Any, run: Run) -> str | None:
    points = make_curve(run.evaluations, "loss")
    if not points.steps:
        return None
    axes = add_axes(figure, "loss")
    training = make_curve(run.lines, "loss")
    axes.plot(training.steps, training.values, color=BLUE, alpha=0.35, linewidth=0.9, label="training")
    axes.plot(points.steps, points.values, color=ORANGE, marker="o", markersize=3, label="evaluation")
    if needs_log_scale([*training.values, *points.values]):
        axes.set_yscale("log")
    mark_resumes(axes, run)
    legend_above(axes)
    last, best = run.evaluations[-1], min(zip(points.values, points.steps, strict=True))
    parts = [f"{points.values[-1]:.4g} on {last.get('samples', 0):,} held-out samples at the end"]
    parts += [f"lowest {best[0]:.4g} at step {best[1]:.0f}"]
    parts += [f"accuracy {last['accuracy']:.1%}"] if "accuracy" in last else []
    parts += [f"perplexity {last['perplexity']:.4g}"] if "perplexity" in last else []
    return make_sentence([*parts, *note_resumes(run)])


def _draw_sources(figure: Any, run: Run) -> str | None:
    """Draw the loss of each data set of a mixture, in training and on held-out samples."""
    names = [key.removeprefix(_SOURCE) for line in run.lines for key in line if key.startswith(_SOURCE)]
    training = {name: make_curve(run.lines, _SOURCE + name) for name in dict.fromkeys(names)}
    training = {name: points for name, points in training.items() if points.steps}
    if not training:
        return None
    axes = add_axes(figure, "loss")
    shown = list(training)[: len(SOURCE_COLOURS)]
    for name, colour in zip(shown, SOURCE_COLOURS, strict=False):
        plot(axes, training[name], colour, make_label(name))
        held_out = make_curve(run.evaluations, _SOURCE + name)
        axes.plot(held_out.steps, held_out.values, color=colour, linestyle="", marker="o", markersize=3)
    mark_resumes(axes, run)
    legend_above(axes)
    parts = ["at the end: " + ", ".join(f"{name} {training[name].values[-1]:.4g}" for name in shown)]
    parts += ["dots: on held-out samples"] if run.evaluations else []
    parts += [f"{len(training) - len(shown)} other sources are in the metrics"] if len(training) > len(shown) else []
    return make_sentence([*parts, *note_resumes(run)])


def _draw_gradient_norm(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, "grad_norm")
    if not points.steps:
        return None
    axes = add_axes(figure, "gradient norm")
    plot(axes, points, GREEN)
    mark_resumes(axes, run)
    parts = [f"global norm before clipping, median {median(points.values):.3g}"]
    limit = (run.config.get("optimizer") or {}).get("clip_norm")
    if limit:
        axes.axhline(limit, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        above = sum(value > limit for value in points.values) / len(points.values)
        parts.append(f"clipped at {limit:g} (dashed) in {above:.0%} of the points")
    return make_sentence(parts)


def _draw_throughput(figure: Any, run: Run) -> str | None:
    points = make_curve(run.lines, f"{run.unit}_per_s")
    if not points.steps:
        return None
    axes = add_axes(figure, f"{run.unit} per second")
    axes.plot(points.steps, points.values, color=BLUE)
    axes.set_ylim(0, max(points.values) * 1.12)
    axes.yaxis.set_major_formatter(make_engineering_format())
    mark_resumes(axes, run)
    parts = [f"median {median(points.values):,.0f} {run.unit} per second"]
    ratios = [line["mfu"] / line[f"{run.unit}_per_s"] for line in run.lines if line.get("mfu")]
    peak = (run.events_of("peak") or [{}])[-1]
    if ratios and peak:
        ratio = 100 * ratios[-1]
        right = axes.secondary_yaxis("right", functions=(lambda rate: rate * ratio, lambda mfu: mfu / ratio))
        right.set_ylabel("MFU, %")
        right.tick_params(length=0, pad=7)
        parts.append(f"MFU is relative to {peak['peak'] / 1e12:,.4g} TFLOP/s per rank ({peak['source']})")
    return make_sentence(parts)


def _draw_split(figure: Any, run: Run) -> str | None:
    curves = {part: make_curve(run.lines, f"{part}_s", 1000) for part in PARTS}
    curves = {part: points for part, points in curves.items() if points.steps}
    steps = max((points.steps for points in curves.values()), key=len, default=[])
    if not steps:
        return None
    axes = add_axes(figure, "ms per step")
    # Communication is measured only from some step on: before that it is part of compute.
    rows = [[0.0] * (len(steps) - len(points.values)) + points.values for points in curves.values()]
    names = ["exposed communication" if part == "communication" else part for part in curves]
    axes.stackplot(steps, rows, labels=names, colors=[PART_COLOURS[part] for part in curves], linewidth=0)
    axes.margins(x=0)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    limit = find_upper_limit(totals)
    axes.set_ylim(0, limit or max(totals) * 1.05)
    legend_above(axes)
    source = run.lines[-1].get("communication_from", "not measured")
    parts = [f"communication: {source}" + (", so it is part of compute" if source == "not measured" else "")]
    parts += ["longer steps are cut off at the top"] if limit else []
    return make_sentence(parts)


def _draw_memory(figure: Any, run: Run) -> str | None:
    curves = {rank: make_curve(lines, "memory_gb") for rank, lines in run.ranks.items()}
    curves = {rank: points for rank, points in curves.items() if points.steps}
    if not curves:
        return None
    axes = add_axes(figure, "GB")
    fullest = max(curves, key=lambda rank: max(curves[rank].values))
    for rank, points in list(curves.items())[:64]:
        if rank != fullest:
            axes.plot(points.steps, points.values, color=GREY, alpha=0.6, linewidth=1)
    axes.plot(curves[fullest].steps, curves[fullest].values, color=PURPLE)
    axes.set_ylim(0, max(curves[fullest].values) * 1.15)
    where = f"most on rank {fullest}" if len(curves) > 1 else f"rank {fullest}"
    others = ["grey: the other ranks"] if len(curves) > 1 else []
    return make_sentence([f"{where}: {max(curves[fullest].values):.2f} GB", *others])


def _draw_ranks(figure: Any, run: Run) -> str | None:
    times = {r: [1000 * v["own_s"] for v in ls[len(ls) // 2 :] if "own_s" in v] for r, ls in run.ranks.items()}
    times = {rank: values for rank, values in times.items() if values}
    if len(times) < 2:  # noqa: PLR2004
        return None
    medians = {rank: median(values) for rank, values in times.items()}
    typical = median(medians.values())
    factor = float((run.config.get("watchdog") or {}).get("straggler", 1.3))
    axes = add_axes(figure, "ms per step", x="rank")
    for rank, values in times.items():
        low, *_, high = quantiles(values, n=10) if len(values) > 1 else (values[0], values[0])
        is_slow = medians[rank] > factor * typical
        axes.plot([rank, rank], [low, high], color=RED if is_slow else GREY, linewidth=2, alpha=0.7)
        axes.plot([rank], [medians[rank]], "o", markersize=5, color=RED if is_slow else BLUE)
    axes.axhline(factor * typical, color=RED, linewidth=0.9, linestyle=(0, (4, 3)))
    top = max(*map(max, times.values()), factor * typical)
    axes.set_ylim(0, top * 1.1)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(make_integer_ticks())
    has_communication = any(line.get("communication_s") is not None for line in run.lines)
    quantity = (
        "time without waiting for other ranks" if has_communication else "whole step (communication was not measured)"
    )
    slowest = max(medians, key=lambda rank: medians[rank])
    return make_sentence(
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
    axes = add_axes(figure, "", x="seconds since the start")
    axes.grid(axis="y", visible=False)
    labelled: set[str] = set()
    for row, attempt in enumerate(shown):
        _draw_attempt(axes, row, attempt, labelled)
    axes.set_yticks(range(len(shown)), [f"start {attempt.number}" for attempt in shown])
    axes.invert_yaxis()
    axes.set_xlim(shown[0].began, shown[-1].ended + 0.01 * (shown[-1].ended - shown[0].began) + 0.1)
    legend_above(axes, ("down", *PHASE_COLOURS, "training"))
    recoveries = [f"{attempt.down + attempt.start_up:.1f} s" for attempt in attempts[1:]][-12:]
    if not recoveries:
        return make_sentence([f"one start, first step after {attempts[0].start_up:.1f} s"])
    return make_sentence([f"time from the last record to the next step: {', '.join(recoveries)}"])


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
    ("sources", "Loss by source", _draw_sources),
    ("throughput", "Throughput", _draw_throughput),
    ("time-split", "Time per step by cause", _draw_split),
    ("gradient-norm", "Gradient norm", _draw_gradient_norm),
    ("memory", "Memory", _draw_memory),
    ("ranks", "Step time per rank", _draw_ranks),
    ("timeline", "Timeline of a step", draw_timeline),
    ("recovery", "Starts and recoveries", _draw_attempts),
)
