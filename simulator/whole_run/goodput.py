"""From steps to days: what checkpoints, failures and waiting add to a run, and how often it should save."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Beyond this exponent a run makes no progress in any time worth stating.
_HOPELESS = 500.0
_ENOUGH = 1e-9
WRITING = (0.2, 0.5, 1.0)
"""Shares of the time in which a checkpoint is being written: training data come from the same filesystem."""
WORTH = 0.01
"""Of a run's time: what more of the filesystem has to gain."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a run meets, in seconds."""

    failure_s: float = math.inf
    """Mean time between failures of the whole job."""
    failure_factors: tuple[float, float] = (1.0, 1.0)
    """How much shorter and longer than that it may be, eight times in ten."""
    save_s: float = 0.0
    """Training stands still for one checkpoint."""
    write_s: float = 0.0
    """From then on until the checkpoint is safe: a failure before that goes back to the one before."""
    restart_s: float = 0.0
    """From a failure to the next step: detection, queue, another machine, start, loading."""
    warned_s: float = math.inf
    """Mean time between interruptions that come with enough notice for a checkpoint (spot)."""
    warned_restart_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """The steps of a run; one takes from `low_s` to `high_s`, eight times in ten."""

    steps: int
    step_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The whole run, waiting included."""

    wall_s: float
    low_s: float
    high_s: float
    goodput: float
    """Share of the time in which steps are made that count."""
    interval_s: float
    """Between two checkpoints, of training."""
    interval_steps: int
    rules_s: dict[str, float]
    """Intervals by the rules that are known by name, which count no filesystem and no whole steps."""
    interruptions: float


def young(c: Conditions) -> float:
    """The classic first-order interval (Young 1974)."""
    return math.sqrt(2 * c.failure_s * c.save_s)


def available(c: Conditions) -> float:
    """The interval that is best for the share of time available (ar5iv.org/abs/2410.18124)."""
    return c.save_s + math.sqrt(2 * (c.failure_s + c.restart_s) * c.save_s + c.save_s**2)


def optimal(c: Conditions) -> float:
    """The least of `stretch`, exactly: its derivative is zero where e^((t + save) / mean) (1 - t / mean) = 1."""
    if c.save_s <= 0 or math.isinf(c.failure_s):
        return young(c) if c.save_s > 0 else 0.0
    cost = c.save_s / c.failure_s
    low, high = 0.0, 1.0
    while high - low > _ENOUGH:
        middle = (low + high) / 2
        if middle + cost + math.log1p(-middle) > 0:
            low = middle
        else:
            high = middle
    # The bisection stops at a billionth of the mean time; below that Young's rule is exact enough.
    return low * c.failure_s or young(c)


def stretch(c: Conditions, interval_s: float) -> float:
    """Wall time for each second of training, if a checkpoint is begun every `interval_s` of training; inf is never.

    Daly's complete model for failures at random (10.1016/j.future.2004.11.016). A checkpoint that is not safe yet
    when a failure comes costs its writing time once more.
    """
    if math.isinf(c.failure_s):
        plain = 1 + c.save_s / interval_s
    else:
        parts = (interval_s + c.save_s) / c.failure_s, (c.restart_s + c.write_s) / c.failure_s
        if sum(parts) > _HOPELESS:
            return math.inf
        plain = c.failure_s / interval_s * math.exp(parts[1]) * math.expm1(parts[0])
    warned = (c.save_s + c.write_s + c.warned_restart_s) / c.warned_s
    return plain / (1 - warned) if warned < 1 else math.inf


def chosen(c: Conditions, step_s: float) -> int:
    """Whole steps between two checkpoints: the best number that leaves the filesystem to others most of the time.

    Where that would cost a run much, it may write more of the time, and at last without a pause.
    """
    found = [_best_within(c, step_s, share) for share in WRITING]
    least = stretch(c, found[-1] * step_s)
    return next((n for n in found if stretch(c, n * step_s) <= least * (1 + WORTH)), found[-1])


def _best_within(c: Conditions, step_s: float, share: float) -> int:
    least = max(1, math.ceil(c.write_s / share / step_s))
    if math.isinf(c.failure_s):
        return least
    near = optimal(c) / step_s
    return min((max(least, math.floor(near)), max(least, math.ceil(near))), key=lambda n: stretch(c, n * step_s))


def outlook(c: Conditions, work: Work, wait_s: float = 0.0, every: int = 0) -> Outlook:
    """`wait_s`: for the first machines; `every`: steps between checkpoints, 0 is the best number.

    Step and failures err apart: their logarithms add up as squares do.
    """
    every = every or chosen(c, work.step_s)
    training = work.steps * work.step_s
    middle = stretch(c, every * work.step_s)
    worst, best = (stretch(_with_failures(c, factor), every * work.step_s) for factor in c.failure_factors)
    wall = training * middle + wait_s
    return Outlook(
        wall_s=wall,
        low_s=wall / _together(work.step_s / work.low_s, middle / best),
        high_s=wall * _together(work.high_s / work.step_s, worst / middle),
        goodput=training / wall,
        interval_s=every * work.step_s,
        interval_steps=every,
        rules_s={"Young": young(c), "availability": available(c), "least time": optimal(c)},
        interruptions=wall / c.failure_s + wall / c.warned_s,
    )


def _with_failures(c: Conditions, factor: float) -> Conditions:
    return replace(c, failure_s=c.failure_s * factor)


def _together(one: float, other: float) -> float:
    if math.isinf(one) or math.isinf(other) or math.isnan(other):
        return math.inf
    return math.exp(math.hypot(math.log(one), math.log(other)))
