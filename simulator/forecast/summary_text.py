"""A forecast as text: a few lines, and tables of where the step's time and the memory go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import zip_longest

from simulator.forecast.forecast import Forecast
from simulator.search.summary_text import (
    MINUTE_S,
    PART_LABELS,
    describe_bottleneck,
    format_duration,
    format_layout,
    format_usd,
)
from simulator.terminal import wrap_text
from simulator.whole_run import failures
from trainer.table import table

MIN_PART_SHARE = 0.005
"""Share of a step below which a part gets no line."""
LABEL_WIDTH = 14
MILLISECOND_S = 1e-3
MEMORY_LABELS = {"beside": "outside of tensors"}
MIN_GAIN = 0.01
"""Share of the time from which a better checkpoint interval is mentioned."""
MIN_LOSS = 0.001
"""Share of lost time from which the useful share is mentioned."""
MIN_FAILURES = 0.01
CENTS_BELOW_USD = 100.0


def format_forecast(forecast: Forecast, columns: int) -> str:
    """Return the forecast as text within this many columns."""
    lines = [f"{name:{LABEL_WIDTH}}{text}" for name, text in _lines(forecast)]
    body = "\n".join(_wrap_hanging(line, columns) for line in lines)
    parts = [wrap_text(_title(forecast), columns), body, _tables(forecast, columns)]
    # A run that does not fit in memory has no total time or cost.
    return "\n\n".join([*parts, _whole(forecast, columns)] if forecast.fits else parts)


def _title(forecast: Forecast) -> str:
    machines = forecast.machines
    stack = f" (stack {machines.stack})" if machines.stack else ""
    profile = f": {machines.profile.description}" if machines.profile else ""
    return f"{forecast.config.name} on {machines.description}{stack}{profile}"


def _lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    step, layout = forecast.prediction, forecast.resolved.layout
    yield "layout", f"{forecast.config.parallel.strategy}: {format_layout(layout)}, {layout.dtype}"
    if forecast.resolved.chosen:
        yield "chosen", " ".join(f"{name}={value}" for name, value in forecast.resolved.chosen.items())
    low, high = format_seconds(step.low_s), format_seconds(step.high_s)
    yield "step", f"{format_seconds(step.step_s)} ({low} to {high} in 80 % of runs)"
    rate, least, most = forecast.units_per_s
    yield (
        "throughput",
        f"{rate:,.0f} {forecast.unit}/s ({least:,.0f} to {most:,.0f}), {rate / forecast.machines.ranks:,.0f} a rank",
    )
    relative = "of the data sheet's" if forecast.machines.of_catalog else "of the best measured product,"
    yield "MFU", f"{forecast.mfu:.1%} {relative} {forecast.peak_tflops:,.3g} TFLOP/s"
    fits = "" if forecast.fits else ": DOES NOT FIT"
    where = "the fullest GPU" if forecast.machines.is_gpu else "a rank"
    yield "memory", f"{format_size(forecast.taken_gib)} of {format_size(forecast.room_gib)} on {where}{fits}"
    yield "limited by", describe_bottleneck(step, 3)


def _tables(forecast: Forecast, columns: int) -> str:
    """Return both tables, side by side if there is space."""
    step = forecast.prediction
    spent = sorted(step.parts.items(), key=lambda part: -part[1])
    parts = [
        (PART_LABELS.get(name, name), format_seconds(took), f"{took / step.step_s:.1%}")
        for name, took in spent
        if took >= MIN_PART_SHARE * step.step_s
    ]
    held = [(MEMORY_LABELS.get(name, name), format_size(gib)) for name, gib in forecast.memory_gib.items()]
    left = table(("step time by part", "time", "share"), parts).split("\n")
    right = table(("memory by part", "size"), held).split("\n")
    width = max(map(len, left)) + 4
    if width + max(map(len, right)) > columns:
        return "\n".join([*left, "", *right])
    return "\n".join(f"{first:{width}}{second}".rstrip() for first, second in zip_longest(left, right, fillvalue=""))


def _whole(forecast: Forecast, columns: int) -> str:
    return "\n".join(_wrap_hanging(f"{name:{LABEL_WIDTH}}{text}", columns) for name, text in _whole_lines(forecast))


def _whole_lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    run, out = forecast.run, forecast.run.outlook
    if math.isinf(out.wall_s):
        reason = "failures happen before the next checkpoint"
        yield "whole run", f"{run.steps:,} steps never finish: {reason}; {_describe_checkpoints(forecast)}"
        return
    lost = f", {out.goodput:.1%} of it useful" if out.goodput < 1 - MIN_LOSS else ""
    interval = f"{format_time(out.low_s)} to {format_time(out.high_s)}"
    yield "whole run", f"{run.steps:,} steps in {format_time(out.wall_s)} ({interval}){lost}"
    if forecast.machines.of_catalog:
        rate = failures.rate()
        often = f"a failure every {rate.gpu_hours:,.0f} GPU-hours"
        many = f"{out.interruptions:.2g} expected" if out.interruptions >= MIN_FAILURES else "hardly any"
        yield "failures", f"{many} ({often}); {_describe_checkpoints(forecast)}"
    if run.cost:
        paid = run.cost
        sums = f"{format_cost(paid.usd)} USD ({format_cost(paid.low)} to {format_cost(paid.high)})"
        yield "cost", f"{sums}, {paid.of}, prices of {paid.priced_on}"
    elif forecast.machines.of_catalog:
        yield "cost", f"there is no price of {forecast.machines.sheet.name} as {forecast.machines.purchase}"
    if run.kwh is not None:
        yield "electricity", f"{run.kwh:,.0f} kWh" if run.kwh >= 1 else "under 1 kWh"
    if not forecast.machines.of_catalog:
        yield "cost", "unknown for machines that are not in the catalog, as is electricity"


def _describe_checkpoints(forecast: Forecast) -> str:
    run, every = forecast.run, forecast.config.checkpoint.interval
    saved = f"{run.checkpoint_gb:.3g} GB" if run.checkpoint_gb >= 1 else f"{1e3 * run.checkpoint_gb:.3g} MB"
    now = f"a checkpoint of {saved} every {every} steps" if every else f"no checkpoint of {saved} during the run"
    if run.gain < MIN_GAIN:
        return now
    gain = "" if math.isnan(run.gain) else f", {run.gain:.0%} sooner"
    return f"{now}; best is checkpoint.every={run.best_every}{gain}"


def format_seconds(value: float) -> str:
    """Return a short time in seconds, milliseconds or microseconds."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.1f} ms" if value >= MILLISECOND_S else f"{1e6 * value:.0f} us"


def format_size(gib: float) -> str:
    """Return a size in GiB or MiB."""
    return f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"


def format_cost(value: float) -> str:
    """Return US dollars, with cents for small amounts."""
    return format_usd(value) if value >= CENTS_BELOW_USD else f"{value:.2f}"


def format_time(value: float) -> str:
    """Return the time of a whole run, which may also be short."""
    return format_seconds(value) if value < MINUTE_S else format_duration(value)


def _wrap_hanging(line: str, columns: int) -> str:
    """Wrap a line that is too long; it continues below its own column."""
    if len(line) <= columns:
        return line
    first, *others = wrap_text(line[LABEL_WIDTH:], columns - LABEL_WIDTH).split("\n")
    return "\n".join([line[:LABEL_WIDTH] + first, *(" " * LABEL_WIDTH + other.strip() for other in others)])
