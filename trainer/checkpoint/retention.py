"""Decide which checkpoints to keep: the newest few, and the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.checkpoint import folder, manifest


def find_best(path: Path, best: str) -> Path | None:
    """Return the best of the checkpoints in a folder by the figure `best`; None if none of them was evaluated."""
    present = {checkpoint.step: checkpoint.path for checkpoint in folder.list_published(path)}
    step = choose_best({step: _read_metric(entry, best) for step, entry in present.items()}, best)
    return None if step is None else present[step]


def prune(path: Path, newest: int, keep: int, best: str) -> list[int]:
    """Remove the checkpoints that are not needed now that step `newest` is published, and return their steps."""
    present = {checkpoint.step: checkpoint.path for checkpoint in folder.list_published(path)}
    metrics = {step: _read_metric(entry, best) for step, entry in present.items()}
    removed = select_removable(metrics, newest, keep, best)
    for step in removed:
        folder.remove(present[step])
    return removed


def remove_after(path: Path, step: int) -> None:
    """Remove the checkpoints of later steps; the next save retries those that cannot be removed now."""
    for checkpoint in folder.list_published(path):
        if checkpoint.step > step:
            with suppress(OSError):
                folder.remove(checkpoint.path)


def select_removable(metrics: Mapping[int, float | None], newest: int, keep: int, best: str) -> list[int]:
    """Return the steps to remove, given the metric of each checkpoint by step.

    The one just published is certainly good and always stays. Later steps belong to a history that ended with a
    rollback or a damaged checkpoint: a resume must not find them.
    """
    history = sorted((step for step in metrics if step <= newest), reverse=True)
    needed = {newest, *history[:keep]}
    if best and (chosen := choose_best({step: metrics[step] for step in history}, best)) is not None:
        needed.add(chosen)
    return sorted(set(metrics) - needed)


def choose_best(metrics: Mapping[int, float | None], best: str) -> int | None:
    """Return the step with the best metric, of equal ones the newest; None if no metric is finite."""
    finite = {step: value for step, value in metrics.items() if value is not None and math.isfinite(value)}
    sign = -1 if is_higher_better(best) else 1
    return min(finite, key=lambda step: (sign * finite[step], -step), default=None)


def is_higher_better(metric: str) -> bool:
    """Return whether a higher value of the metric is better, as for an accuracy, unlike for a loss."""
    return "accuracy" in metric


def _read_metric(path: Path, best: str) -> float | None:
    """Return the figure `best` of a checkpoint; None if it was saved with another one, or without."""
    if not best:
        return None
    try:
        stored = manifest.read_manifest(path)
    except manifest.DamagedCheckpoint:
        return None
    return stored.metric if stored.metric_name == best else None
