"""Decide which checkpoints to keep: the newest few, and the best one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainer.checkpoint import confirmed, folder, manifest
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.read_retry import read_with_retries


def find_best(path: Path, best: str) -> Path | None:
    """Return the best of the checkpoints in a folder by the figure `best`; None if none of them was evaluated."""
    present = {checkpoint.step: checkpoint.path for checkpoint in folder.list_published(path)}
    metrics = {step: read_with_retries(entry, partial(_read_metric, entry, best)) for step, entry in present.items()}
    step = choose_best(metrics, best)
    return None if step is None else present[step]


def prune(  # noqa: PLR0913, PLR0917 - one per setting
    path: Path, newest: int, keep: int, best: str, discarded: Collection[int], fence: Fence
) -> list[int]:
    """Remove the checkpoints that are not needed now that step `newest` is published, and return their steps.

    `discarded` are later steps that may go too. Raise OSError, before anything is removed, if a metric cannot be read.
    """
    present = {checkpoint.step: checkpoint.path for checkpoint in folder.list_published(path)}
    metrics = {step: _read_metric(entry, best) for step, entry in present.items()}
    removed = select_removable(metrics, newest, keep, best, discarded, confirmed.read_confirmed(path))
    for step in removed:
        folder.remove(present[step], fence)
    return removed


def remove_after(path: Path, step: int, fence: Fence) -> list[int]:
    """Remove the checkpoints of later steps and return the steps; the next save retries those that stay."""
    confirmed.limit_confirmed(path, step, fence)
    later = [checkpoint for checkpoint in folder.list_published(path) if checkpoint.step > step]
    for checkpoint in later:
        with suppress(OSError):
            folder.remove(checkpoint.path, fence)
    return [checkpoint.step for checkpoint in later]


def select_removable(  # noqa: PLR0913, PLR0917 - one per setting
    metrics: Mapping[int, float | None],
    newest: int,
    keep: int,
    best: str,
    discarded: Collection[int],
    confirmed_step: int | None = None,
) -> list[int]:
    """Return the steps to remove, given the metric of each checkpoint by step.

    The one just published is certainly good and always stays. Of later ones, only those in `discarded` go: they were
    read and found damaged, or belong to a history that ended with a rollback, and a resume must not find them. Others
    may be good. The newest of those up to `confirmed_step` stays too: a corrupted run goes back to it.
    """
    history = sorted((step for step in metrics if step <= newest), reverse=True)
    needed = {newest, *history[:keep]}
    if best and (chosen := choose_best({step: metrics[step] for step in history}, best)) is not None:
        needed.add(chosen)
    if confirmed_step is not None:
        needed |= {max((step for step in history if step <= confirmed_step), default=newest)}
    return sorted(step for step in metrics if step not in needed and (step < newest or step in discarded))


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
