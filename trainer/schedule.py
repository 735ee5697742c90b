"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from trainer.config.schema import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, peak: float, steps: int, step: int) -> float:
    """The rate of update number `step`, counted from 0, in a run of `steps`."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    length = max(1, steps - schedule.warmup - 1)
    done = min(1.0, (step - schedule.warmup) / length)
    return peak * (schedule.floor + (1 - schedule.floor) * _share(schedule.kind, done))


def _share(kind: str, done: float) -> float:
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 - done
    return (1 + math.cos(math.pi * done)) / 2
