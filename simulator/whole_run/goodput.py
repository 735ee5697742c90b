"""Estimate a run's wall time from its steps, checkpoints, failures and waiting, and how often it should save."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Beyond this exponent the expected time of a run is astronomical.
_MAX_EXPONENT = 500.0
_PRECISION = 1e-9
WRITING_SHARES = (0.2, 0.5, 1.0)
"""Shares of the time that checkpoints may be written in, tried in order; reading training data needs the rest."""
MIN_GAIN = 0.01
"""Share of a run's time that a larger writing share must save."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Failure, checkpoint and restart times of a run, in seconds."""

    failure_s: float = math.inf
    """Mean time between failures of the whole job."""
    failure_factors: tuple[float, float] = (1.0, 1.0)
    """Factors of the mean time between failures that bound its 80 % interval."""
    save_s: float = 0.0
    """Time that training waits for a checkpoint."""
    write_s: float = 0.0
    """Time from then until the checkpoint is complete; a failure before that falls back to the previous checkpoint."""
    restart_s: float = 0.0
    """From a failure to the next step: detection, queue, replacement machine, start, loading."""
    warned_s: float = math.inf
    """Mean time between interruptions with enough notice to save a checkpoint (spot)."""
    warned_restart_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """The steps of a run; `low_s` to `high_s` is the 80 % interval of a step."""

    steps: int
    step_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The whole run, including waiting."""

    wall_s: float
    low_s: float
    high_s: float
    goodput: float
    """Share of the time spent on steps that are not lost to a failure."""
    interval_s: float
    """Training time between two checkpoints."""
    interval_steps: int
    rules_s: dict[str, float]
    """Intervals by textbook rules, which ignore the filesystem and whole steps."""
    interruptions: float


def young_interval_s(c: Conditions) -> float:
    """Return the classic first-order interval (Young 1974)."""
    return math.sqrt(2 * c.failure_s * c.save_s)


def availability_interval_s(c: Conditions) -> float:
    """Return the interval that maximizes the share of time available (ar5iv.org/abs/2410.18124)."""
    return c.save_s + math.sqrt(2 * (c.failure_s + c.restart_s) * c.save_s + c.save_s**2)


def optimal_interval_s(c: Conditions) -> float:
    """Return the interval that minimizes `stretch`: its derivative is 0 at e^((t + save) / mean) (1 - t / mean) = 1."""
    if c.save_s <= 0 or math.isinf(c.failure_s):
        return young_interval_s(c) if c.save_s > 0 else 0.0
    cost = c.save_s / c.failure_s
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if middle + cost + math.log1p(-middle) > 0:
            low = middle
        else:
            high = middle
    # The bisection stops at a billionth of the mean time; below that Young's rule is exact enough.
    return low * c.failure_s or young_interval_s(c)


def stretch(c: Conditions, interval_s: float) -> float:
    """Return the wall time per second of training with a checkpoint every `interval_s`; inf if the run never ends.

    Daly's complete model for random failures (10.1016/j.future.2004.11.016). If a checkpoint is incomplete when a
    failure happens, its writing time is lost as well.
    """
    if math.isinf(c.failure_s):
        plain = 1 + c.save_s / interval_s
    else:
        parts = (interval_s + c.save_s) / c.failure_s, (c.restart_s + c.write_s) / c.failure_s
        if sum(parts) > _MAX_EXPONENT:
            return math.inf
        plain = c.failure_s / interval_s * math.exp(parts[1]) * math.expm1(parts[0])
    warned = (c.save_s + c.write_s + c.warned_restart_s) / c.warned_s
    return plain / (1 - warned) if warned < 1 else math.inf


def choose_interval(c: Conditions, step_s: float) -> int:
    """Return the number of steps between checkpoints that leaves the filesystem idle most of the time.

    If that costs the run too much, it may write a larger share of the time, and finally without a pause.
    """
    candidates = [_best_within(c, step_s, share) for share in WRITING_SHARES]
    least = stretch(c, candidates[-1] * step_s)
    return next((n for n in candidates if stretch(c, n * step_s) <= least * (1 + MIN_GAIN)), candidates[-1])


def _best_within(c: Conditions, step_s: float, share: float) -> int:
    least = max(1, math.ceil(c.write_s / share / step_s))
    if math.isinf(c.failure_s):
        return least
    near = optimal_interval_s(c) / step_s
    return min((max(least, math.floor(near)), max(least, math.ceil(near))), key=lambda n: stretch(c, n * step_s))


def predict_outlook(c: Conditions, work: Work, wait_s: float = 0.0, every: int = 0) -> Outlook:
    """Estimate the whole run; `wait_s` is the wait for the first machines, `every` the steps between checkpoints.

    `every` = 0 chooses the best number. Errors of step time and failure rate are independent, so the squares of their
    logarithms add up.
    """
    every = every or choose_interval(c, work.step_s)
    training = work.steps * work.step_s
    middle = stretch(c, every * work.step_s)
    worst, best = (stretch(_with_failures(c, factor), every * work.step_s) for factor in c.failure_factors)
    wall = training * middle + wait_s
    return Outlook(
        wall_s=wall,
        low_s=wall / _combine(work.step_s / work.low_s, middle / best),
        high_s=wall * _combine(work.high_s / work.step_s, worst / middle),
        goodput=training / wall,
        interval_s=every * work.step_s,
        interval_steps=every,
        rules_s={
            "Young": young_interval_s(c),
            "availability": availability_interval_s(c),
            "least time": optimal_interval_s(c),
        },
        interruptions=wall / c.failure_s + wall / c.warned_s,
    )


def _with_failures(c: Conditions, factor: float) -> Conditions:
    return replace(c, failure_s=c.failure_s * factor)


def _combine(first: float, second: float) -> float:
    if math.isinf(first) or math.isinf(second) or math.isnan(second):
        return math.inf
    return math.exp(math.hypot(math.log(first), math.log(second)))
