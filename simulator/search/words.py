"""A plan in words: the front as a table, and each row with what limits it and what realises it."""

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

DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0
FEW_DAYS = 2
MILLION = 1e6
WORTH_SAYING = 0.01
HELD_UP = 1.5
"""Times the best interval between checkpoints, from which on the filesystem is why."""
HEADS = ("row", "machines", "time (80 %)", "USD (80 %)", "useful", "MWh")
LAYOUT_HEADS = ("row", "layout", "step s (80 %)", "GiB", "limited by")
PARTS = {
    "compute": "matrix products",
    "attention": "attention",
    "vocabulary": "the vocabulary's product",
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
    "step": "what a step costs whatever its size",
    "offload": "the host's update",
}


def told(plan: Plan, columns: int) -> str:
    """Within so many columns, where names allow it."""
    marked = [(_marked(number, one, plan), one) for number, one in numbered(plan)]
    return f"{_front(marked, columns)}\n\n{_layouts(marked, columns)}\n\n{wrap_text(_below(plan), columns)}"


def numbered(plan: Plan) -> list[tuple[int, Option]]:
    return list(enumerate(plan.front, 1))


def sentence(one: Option) -> str:
    outlook = one.outlook
    times = "interruption" if round(outlook.interruptions) == 1 else "interruptions"
    return (
        f"{one.nodes} x {one.instance} {one.purchase}, {duration(outlook.wall_s)}, {money(one.usd)} USD, "
        f"{one.steps:,} steps of {one.layout.global_batch} samples, about {outlook.interruptions:.0f} {times}, "
        f"a checkpoint every {outlook.interval_steps} steps ({duration(outlook.interval_s)})"
    )


def assumptions(plan: Plan) -> str:
    """What the figures stand on, for whoever reads only them."""
    rate = failures.rate()
    days = ", ".join(sorted({str(one.priced_on) for one in plan.front}))
    found = f"prices of {days}; a failure every {rate.gpu_hours:,.0f} GPU-hours ({rate.low:,.0f} to {rate.high:,.0f})"
    gb, spec = checkpoint_gb(plan.question.named.model), plan.question.spec
    written = f"{duration(gb / filesystem.gb_s(spec))} at the {filesystem.gb_s(spec):.1f} GB/s of {filesystem.SHARED}"
    found += f"\na checkpoint has {gb:,.0f} GB and takes {written}{_interval(plan.chosen) if plan.chosen else ''}"
    better = filesystem.advice(spec, gb)
    profile = f"rates of {plan.question.profile.description}" if plan.question.profile else ""
    return "\n".join(filter(None, (found, better, profile)))


def layout_words(layout: Layout) -> str:
    """As short as they are typed: what is 1 or off is left out."""
    words = [f"{name}{size}" for name in ("dp", "tp", "pp", "cp", "ep") if (size := getattr(layout, name)) > 1]
    if layout.virtual_stages > 1:
        words.append(f"v{layout.virtual_stages}")
    if layout.zero:
        words.append(f"zero{layout.zero}" + (f"/{layout.shard}" if layout.shard else ""))
    words += [f"mb{layout.micro_batch}", f"gb{layout.global_batch}"]
    if layout.recompute != "none":
        words.append(f"recompute-{layout.recompute}")
    return " ".join(words)


def bottleneck(prediction: Prediction, parts: int = 2) -> str:
    """The largest parts of a step, with their shares."""
    largest = sorted(prediction.parts.items(), key=lambda part: -part[1])[:parts]
    return ", ".join(f"{PARTS.get(name, name)} {seconds / prediction.step_s:.0%}" for name, seconds in largest)


def duration(seconds: float) -> str:
    if seconds >= FEW_DAYS * DAY:
        return f"{seconds / DAY:.1f} d"
    if seconds >= HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= MINUTE else f"{seconds:.0f} s"


def money(usd: float) -> str:
    return f"{usd:,.0f}"


def _front(marked: Sequence[tuple[str, Option]], columns: int) -> str:
    """Electricity is the first to go, then digits of the money, then the share of useful time."""
    full, brief = ([_row(mark, one, sum_) for mark, one in marked] for sum_ in (money, _millions))
    ways = ((full, 6), (full, 5), (brief, 6), (brief, 5), (brief, 4))
    return render_table(columns, *((HEADS[:kept], [row[:kept] for row in rows]) for rows, kept in ways))


def _layouts(marked: Sequence[tuple[str, Option]], columns: int) -> str:
    ways = ([_layout_row(mark, one, parts) for mark, one in marked] for parts in (2, 1))
    return render_table(columns, *((LAYOUT_HEADS, rows) for rows in ways))


def _millions(usd: float) -> str:
    return f"{usd / MILLION:,.1f} M" if usd >= MILLION else money(usd)


def _below(plan: Plan) -> str:
    lines = []
    if plan.chosen:
        number = next(n for n, one in numbered(plan) if one is plan.chosen)
        lines.append(f"row {number} {_why(plan)}: {sentence(plan.chosen)}{_risk(plan, plan.chosen)}")
    lines.append(assumptions(plan))
    reasons = dict.fromkeys(one.unsupported for one in plan.front if one.unsupported)
    if reasons:
        lines.append(f"! no trainer config: {'; '.join(reasons)}")
    elif plan.gain >= WORTH_SAYING:
        lines.append(
            f"layouts that the trainer does not have would be {plan.gain:.0%} faster at best; --any shows them"
        )
    return "\n".join(lines)


def _interval(one: Option) -> str:
    """How often, and what keeps it from being as often as failures alone would ask for."""
    every, wanted = duration(one.outlook.interval_s), one.outlook.rules_s["least time"]
    if one.outlook.interval_s < HELD_UP * wanted or one.outlook.interval_steps == 1:
        return f"; saved every {every}, which loses the least time to failures"
    alone = f"failures alone would ask for every {duration(wanted)}"
    return f"; saved every {every}, as often as the filesystem should take it ({alone})"


def _marked(number: int, one: Option, plan: Plan) -> str:
    return f"{number}{'*' if one is plan.chosen else '!' if one.unsupported else ''}"


def _row(number: str, one: Option, usd: Callable[[float], str]) -> Sequence[str]:
    outlook = one.outlook
    return (
        number,
        f"{one.nodes} x {one.instance} {one.purchase}",
        f"{duration(outlook.wall_s)} ({duration(outlook.low_s)} to {duration(outlook.high_s)})",
        f"{usd(one.usd)} ({usd(one.usd_low)} to {usd(one.usd_high)})",
        f"{outlook.goodput:.1%}",
        f"{one.kwh / 1000:,.1f}",
    )


def _layout_row(number: str, one: Option, parts: int) -> Sequence[str]:
    step = one.prediction
    return (
        number,
        layout_words(one.layout),
        f"{step.step_s:.2f} ({step.low_s:.2f} to {step.high_s:.2f})",
        f"{one.memory_gib:.0f}",
        bottleneck(step, parts),
    )


def _why(plan: Plan) -> str:
    question = plan.question
    if question.deadline_s is not None:
        return f"is the cheapest within {duration(question.deadline_s)}"
    if question.budget_usd is not None:
        return f"is the fastest within {money(question.budget_usd)} USD"
    return "has the least product of time and money"


def _risk(plan: Plan, one: Option) -> str:
    """Nine times in ten a run stays below the upper end of its 80 % interval."""
    deadline, budget = plan.question.deadline_s, plan.question.budget_usd
    if deadline is not None and one.outlook.high_s > deadline:
        return f"; in one case of ten it takes more than {duration(one.outlook.high_s)}, past the deadline"
    if budget is not None and one.usd_high > budget:
        return f"; in one case of ten it costs more than {money(one.usd_high)} USD, past the budget"
    return ""
