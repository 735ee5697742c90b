"""The learning rate as a function of the step only, so that checkpoints need not store it."""

from __future__ import annotations

import math

from trainer.config.schema import ScheduleConfig


def learning_rate(schedule: ScheduleConfig, peak: float, steps: int, step: int) -> float:
    """Return the learning rate of update number `step`, counted from 0, in a run of `steps` updates."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "inverse_sqrt":
        # It depends on no last step: a run may be prolonged at any time.
        return peak * max(schedule.floor, math.sqrt(schedule.warmup / (step + 1)))
    start = _find_decay_start(schedule, steps)
    progress = min(1.0, max(0.0, (step - start) / max(1, steps - 1 - start)))
    shape = schedule.decay_shape if schedule.kind == "wsd" else schedule.kind
    return peak * (schedule.floor + (1 - schedule.floor) * _compute_remaining(shape, progress))


def count_decay_steps(schedule: ScheduleConfig, steps: int) -> int:
    """Return the number of steps of wsd's final decay."""
    return math.ceil(schedule.decay_share * steps)


def _find_decay_start(schedule: ScheduleConfig, steps: int) -> int:
    """Return the last step at the peak: the first after the warm-up or, for wsd, the one before its final decay."""
    return steps - 1 - count_decay_steps(schedule, steps) if schedule.kind == "wsd" else schedule.warmup


def _compute_remaining(shape: str, progress: float) -> float:
    """Return the part of the way from peak to floor that is left, after `progress` (0 to 1) of the decay."""
    if shape == "linear":
        return 1.0 - progress
    if shape == "sqrt":
        return 1.0 - math.sqrt(progress)
    return (1 + math.cos(math.pi * progress)) / 2
