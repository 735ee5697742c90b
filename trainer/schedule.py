"""The learning rate as a function of the step only, so that checkpoints need not store it."""

from __future__ import annotations

import math

from trainer.config.schema import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, peak: float, steps: int, step: int) -> float:
    """Return the learning rate of update number `step`, counted from 0, in a run of `steps` updates."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    length = max(1, steps - schedule.warmup - 1)
    progress = min(1.0, (step - schedule.warmup) / length)
    return peak * (schedule.floor + (1 - schedule.floor) * _decay(schedule.kind, progress))


def _decay(kind: str, progress: float) -> float:
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 - progress
    return (1 + math.cos(math.pi * progress)) / 2
