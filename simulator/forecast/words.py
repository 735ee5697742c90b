"""A forecast for people: a few lines, where the step goes and what the memory is made of side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import zip_longest

from simulator.forecast.forecast import Forecast
from simulator.search.words import PARTS, bottleneck, duration, layout_words, money
from simulator.terminal import wrap_text
from simulator.whole_run import failures
from trainer.table import table

LEAST = 0.005
"""Share of a step below which a part is not worth a line."""
LABEL = 14
MILLI, MINUTE = 1e-3, 60.0
HELD = {"beside": "beside the tensors"}
WORTH = 0.01
"""Share of the time from which on another number of steps between checkpoints is worth a word."""
USEFUL = 0.001
HARDLY = 0.01
SMALL = 100.0
"""Dollars below which cents count."""


def told(found: Forecast, columns: int) -> str:
    lines = [f"{name:{LABEL}}{text}" for name, text in _lines(found)]
    body = "\n".join(_hanging(line, columns) for line in lines)
    parts = [wrap_text(_title(found), columns), body, _tables(found, columns)]
    # Of a run that cannot be made there is no whole.
    return "\n\n".join([*parts, _whole(found, columns)] if found.fits else parts)


def _title(found: Forecast) -> str:
    on = found.on
    stack = f" (stack {on.stack})" if on.stack else ""
    by = f": {on.profile.description}" if on.profile else ""
    return f"{found.config.name} on {on.told}{stack}{by}"


def _lines(found: Forecast) -> Iterator[tuple[str, str]]:
    step, layout = found.prediction, found.settled.layout
    yield "layout", f"{found.config.parallel.strategy}: {layout_words(layout)}, {found.config.precision}"
    if found.settled.chosen:
        yield "chosen", " ".join(f"{name}={value}" for name, value in found.settled.chosen.items())
    yield "step", f"{seconds(step.step_s)} ({seconds(step.low_s)} to {seconds(step.high_s)} in four of five runs)"
    rate, least, most = found.units_per_s
    yield "throughput", f"{rate:,.0f} {found.unit}/s ({least:,.0f} to {most:,.0f}), {rate / found.on.ranks:,.0f} a rank"
    relative = "of the data sheet's" if found.on.of_catalog else "of the best product measured,"
    yield "MFU", f"{found.mfu:.1%} {relative} {found.peak_tflops:,.3g} TFLOP/s"
    fits = "" if found.fits else ": DOES NOT FIT"
    where = "the fullest GPU" if found.on.is_gpu else "a rank"
    yield "memory", f"{size(found.taken_gib)} of {size(found.room_gib)} on {where}{fits}"
    yield "limited by", bottleneck(step, 3)


def _tables(found: Forecast, columns: int) -> str:
    """Beside each other where there is room."""
    step = found.prediction
    spent = sorted(step.parts.items(), key=lambda part: -part[1])
    parts = [(PARTS.get(name, name), seconds(took), f"{took / step.step_s:.1%}") for name, took in spent
             if took >= LEAST * step.step_s]  # fmt: skip
    held = [(HELD.get(name, name), size(gib)) for name, gib in found.memory_gib.items()]
    left = table(("a step goes to", "time", "share"), parts).split("\n")
    right = table(("memory is made of", "size"), held).split("\n")
    width = max(map(len, left)) + 4
    if width + max(map(len, right)) > columns:
        return "\n".join([*left, "", *right])
    return "\n".join(f"{one:{width}}{other}".rstrip() for one, other in zip_longest(left, right, fillvalue=""))


def _whole(found: Forecast, columns: int) -> str:
    return "\n".join(_hanging(f"{name:{LABEL}}{text}", columns) for name, text in _whole_lines(found))


def _whole_lines(found: Forecast) -> Iterator[tuple[str, str]]:
    run, out = found.run, found.run.outlook
    if math.isinf(out.wall_s):
        yield "whole run", f"{run.steps:,} steps never end: a failure comes before a checkpoint; {_every(found)}"
        return
    lost = f", {out.goodput:.1%} of it useful" if out.goodput < 1 - USEFUL else ""
    interval = f"{long(out.low_s)} to {long(out.high_s)}"
    yield "whole run", f"{run.steps:,} steps in {long(out.wall_s)} ({interval}){lost}"
    if found.on.of_catalog:
        rate = failures.rate()
        often = f"a failure every {rate.gpu_hours:,.0f} GPU-hours"
        many = f"{out.interruptions:.2g} to be expected" if out.interruptions >= HARDLY else "hardly any"
        yield "failures", f"{many} ({often}); {_every(found)}"
    if run.money:
        paid = run.money
        sums = f"{usd(paid.usd)} USD ({usd(paid.low)} to {usd(paid.high)})"
        yield "money", f"{sums}, {paid.of}, prices of {paid.priced_on}"
    elif found.on.of_catalog:
        yield "money", f"nobody has a price of {found.on.sheet.name} as {found.on.purchase}"
    if run.kwh is not None:
        yield "electricity", f"{run.kwh:,.0f} kWh"
    if not found.on.of_catalog:
        yield "money", "not known of machines that are in no catalog, nor electricity"


def _every(found: Forecast) -> str:
    run, every = found.run, found.config.checkpoint.every
    saved = f"{run.checkpoint_gb:.3g} GB"
    now = f"a checkpoint of {saved} every {every} steps" if every else f"no checkpoint of {saved} on the way"
    if run.gain < WORTH:
        return now
    gain = "" if math.isnan(run.gain) else f", {run.gain:.0%} sooner"
    return f"{now}; best is checkpoint.every={run.best_every}{gain}"


def seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.1f} ms" if value >= MILLI else f"{1e6 * value:.0f} us"


def size(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"


def usd(value: float) -> str:
    return money(value) if value >= SMALL else f"{value:.2f}"


def long(value: float) -> str:
    """A whole run may also be a short one."""
    return seconds(value) if value < MINUTE else duration(value)


def _hanging(line: str, columns: int) -> str:
    """What does not fit goes on below its own column."""
    if len(line) <= columns:
        return line
    first, *rest = wrap_text(line[LABEL:], columns - LABEL).split("\n")
    return "\n".join([line[:LABEL] + first, *(" " * LABEL + one.strip() for one in rest)])
