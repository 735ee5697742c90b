"""A plan as text: the front as a table, and for each row what limits it and which settings it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.layout import Layout
from simulator.parameters import checkpoint_gb
from simulator.search import filesystem
from simulator.search.option import Option
from simulator.search.plan import Plan
from simulator.step.prediction import Prediction
from simulator.terminal import render_table, wrap_text
from simulator.whole_run import failures

DAY_S, HOUR_S, MINUTE_S = 86400.0, 3600.0, 60.0
MIN_DAYS = 2
"""Durations below this number of days are shown in hours."""
MILLION = 1e6
MIN_GAIN = 0.01
"""Gain of unsupported layouts below which they are not mentioned."""
FILESYSTEM_BOUND = 1.5
"""Ratio to the best checkpoint interval from which the filesystem is named as the reason."""
HEADS = ("row", "machines", "time (80 %)", "USD (80 %)", "useful", "MWh")
LAYOUT_HEADS = ("row", "layout", "step s (80 %)", "GiB", "limited by")
PART_LABELS = {
    "compute": "matrix products",
    "attention": "attention",
    "vocabulary": "output head and loss",
    "memory bound": "memory bandwidth",
    "recompute": "recomputing",
    "host": "the host's launches",
    "tensor": "tensor-parallel exchange",
    "context": "context-parallel exchange",
    "experts": "exchange between experts",
    "gather": "gathering sharded weights",
    "pipeline bubble": "pipeline bubble",
    "data": "reducing gradients",
    "optimizer": "the optimizer",
    "jitter": "waiting for the slowest rank",
    "step": "fixed overhead of a step",
    "offload": "the host's update",
}


def format_plan(plan: Plan, columns: int) -> str:
    """Return the plan as text, within this many columns if the names allow it."""
    marked = [(_mark(number, option, plan), option) for number, option in number_rows(plan)]
    return (
        f"{_format_front(marked, columns)}\n\n{_format_layouts(marked, columns)}\n\n{wrap_text(_notes(plan), columns)}"
    )


def number_rows(plan: Plan) -> list[tuple[int, Option]]:
    """Return the options of the front with their row numbers."""
    return list(enumerate(plan.front, 1))


def describe_option(option: Option) -> str:
    """Return an option as one sentence."""
    outlook = option.outlook
    times = "interruption" if round(outlook.interruptions) == 1 else "interruptions"
    return (
        f"{option.nodes} x {option.instance} {option.purchase}, {format_duration(outlook.wall_s)}, "
        f"{format_usd(option.usd)} USD, {option.steps:,} steps of {option.layout.global_batch} samples, "
        f"about {outlook.interruptions:.0f} {times}, "
        f"a checkpoint every {outlook.interval_steps} steps ({format_duration(outlook.interval_s)})"
    )


def describe_assumptions(plan: Plan) -> str:
    """Return the prices, failure rate, filesystem and profile that the figures are based on."""
    rate = failures.rate()
    days = ", ".join(sorted({str(option.priced_on) for option in plan.front}))
    lines = f"prices of {days}; a failure every {rate.gpu_hours:,.0f} GPU-hours ({rate.low:,.0f} to {rate.high:,.0f})"
    gb, spec = checkpoint_gb(plan.question.named.model), plan.question.spec
    rate_gb_s = filesystem.gb_s(spec)
    written = f"{format_duration(gb / rate_gb_s)} at the {rate_gb_s:.1f} GB/s of {filesystem.SHARED}"
    lines += f"\na checkpoint has {gb:,.0f} GB and takes {written}{_interval(plan.chosen) if plan.chosen else ''}"
    advice = filesystem.advice(spec, gb)
    profile = f"rates of {plan.question.profile.description}" if plan.question.profile else ""
    return "\n".join(filter(None, (lines, advice, profile)))


def format_layout(layout: Layout) -> str:
    """Return a layout in short form, without what is 1 or off: `dp8 tp4 mb1 gb512`."""
    terms = [f"{name}{size}" for name in ("dp", "tp", "pp", "cp", "ep") if (size := getattr(layout, name)) > 1]
    if layout.virtual_stages > 1:
        terms.append(f"v{layout.virtual_stages}")
    if layout.zero:
        terms.append(f"zero{layout.zero}" + (f"/{layout.shard}" if layout.shard else ""))
    terms += [f"mb{layout.micro_batch}", f"gb{layout.global_batch}"]
    if layout.recompute != "none":
        terms.append(f"recompute-{layout.recompute}")
    return " ".join(terms)


def describe_bottleneck(prediction: Prediction, parts: int = 2) -> str:
    """Return the largest parts of a step, with their shares."""
    largest = sorted(prediction.parts.items(), key=lambda part: -part[1])[:parts]
    return ", ".join(f"{PART_LABELS.get(name, name)} {seconds / prediction.step_s:.0%}" for name, seconds in largest)


def format_duration(seconds: float) -> str:
    """Return a duration in days, hours, minutes or seconds."""
    if seconds >= MIN_DAYS * DAY_S:
        return f"{seconds / DAY_S:.1f} d"
    if seconds >= HOUR_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / MINUTE_S:.1f} min" if seconds >= MINUTE_S else f"{seconds:.0f} s"


def format_usd(usd: float) -> str:
    """Return whole US dollars."""
    return f"{usd:,.0f}"


def _format_front(marked: Sequence[tuple[str, Option]], columns: int) -> str:
    """Return the first table; if space is short, electricity goes first, then digits of the cost, then useful time."""
    full, brief = (
        [_row(mark, option, format_cost) for mark, option in marked] for format_cost in (format_usd, _millions)
    )
    variants = ((full, 6), (full, 5), (brief, 6), (brief, 5), (brief, 4))
    return render_table(columns, *((HEADS[:count], [row[:count] for row in rows]) for rows, count in variants))


def _format_layouts(marked: Sequence[tuple[str, Option]], columns: int) -> str:
    variants = ([_layout_row(mark, option, parts) for mark, option in marked] for parts in (2, 1))
    return render_table(columns, *((LAYOUT_HEADS, rows) for rows in variants))


def _millions(usd: float) -> str:
    return f"{usd / MILLION:,.1f} M" if usd >= MILLION else format_usd(usd)


def _notes(plan: Plan) -> str:
    lines = []
    if plan.chosen:
        number = next(number for number, option in number_rows(plan) if option is plan.chosen)
        lines.append(f"row {number} {_why_chosen(plan)}: {describe_option(plan.chosen)}{_risk(plan, plan.chosen)}")
    lines.append(describe_assumptions(plan))
    reasons = dict.fromkeys(option.unsupported for option in plan.front if option.unsupported)
    if reasons:
        lines.append(f"! no trainer config: {'; '.join(reasons)}")
    elif plan.gain >= MIN_GAIN:
        lines.append(
            f"layouts that the trainer does not support would be {plan.gain:.0%} faster at best; --any shows them"
        )
    return "\n".join(lines)


def _interval(option: Option) -> str:
    """Return how often checkpoints are saved, and what prevents saving as often as failures alone would call for."""
    every, best_s = format_duration(option.outlook.interval_s), option.outlook.rules_s["least time"]
    if option.outlook.interval_s < FILESYSTEM_BOUND * best_s or option.outlook.interval_steps == 1:
        return f"; saved every {every}, which loses the least time to failures"
    alone = f"failures alone would call for every {format_duration(best_s)}"
    return f"; saved every {every}, as often as the filesystem should take it ({alone})"


def _mark(number: int, option: Option, plan: Plan) -> str:
    return f"{number}{'*' if option is plan.chosen else '!' if option.unsupported else ''}"


def _row(number: str, option: Option, format_cost: Callable[[float], str]) -> Sequence[str]:
    outlook = option.outlook
    low, high = format_duration(outlook.low_s), format_duration(outlook.high_s)
    return (
        number,
        f"{option.nodes} x {option.instance} {option.purchase}",
        f"{format_duration(outlook.wall_s)} ({low} to {high})",
        f"{format_cost(option.usd)} ({format_cost(option.usd_low)} to {format_cost(option.usd_high)})",
        f"{outlook.goodput:.1%}",
        f"{option.kwh / 1000:,.1f}",
    )


def _layout_row(number: str, option: Option, parts: int) -> Sequence[str]:
    step = option.prediction
    return (
        number,
        format_layout(option.layout),
        f"{step.step_s:.2f} ({step.low_s:.2f} to {step.high_s:.2f})",
        f"{option.memory_gib:.0f}",
        describe_bottleneck(step, parts),
    )


def _why_chosen(plan: Plan) -> str:
    question = plan.question
    if question.deadline_s is not None:
        return f"is the cheapest within {format_duration(question.deadline_s)}"
    if question.budget_usd is not None:
        return f"is the fastest within {format_usd(question.budget_usd)} USD"
    return "has the smallest product of time and cost"


def _risk(plan: Plan, option: Option) -> str:
    """Return a warning if the upper end of the 80 % interval, exceeded in 1 of 10 cases, is beyond the limit."""
    deadline, budget = plan.question.deadline_s, plan.question.budget_usd
    if deadline is not None and option.outlook.high_s > deadline:
        return f"; in 1 of 10 cases it takes more than {format_duration(option.outlook.high_s)}, past the deadline"
    if budget is not None and option.usd_high > budget:
        return f"; in 1 of 10 cases it costs more than {format_usd(option.usd_high)} USD, over the budget"
    return ""
