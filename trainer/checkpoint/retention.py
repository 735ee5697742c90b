"""Which checkpoints stay: the newest few, and the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.checkpoint import folder, manifest


def prune(path: Path, just: int, keep: int, best: str) -> list[int]:
    """Remove what need not stay now that step `just` is published; steps that could not be removed are tried again."""
    present = {entry.step: entry.path for entry in folder.published(path)}
    metrics = {step: _metric(entry) for step, entry in present.items()} if best else dict.fromkeys(present)
    removed = superfluous(metrics, just, keep, best)
    for step in removed:
        folder.remove(present[step])
    return removed


def drop_after(path: Path, step: int) -> None:
    """What resists removal is no reason to end a run; the next save tries again."""
    for entry in folder.published(path):
        if entry.step > step:
            with suppress(OSError):
                folder.remove(entry.path)


def superfluous(metrics: Mapping[int, float | None], just: int, keep: int, best: str) -> list[int]:
    """Steps to remove, given the metric of each present one.

    The one just published is known to be good and always stays. Later steps come from a line that a rollback or a
    damaged checkpoint ended: a resume must not find them.
    """
    line = sorted((step for step in metrics if step <= just), reverse=True)
    stay = {just, *line[:keep]}
    if best:
        known = {step: value for step in line if (value := metrics[step]) is not None and math.isfinite(value)}
        sign = -1 if grows(best) else 1
        stay |= set(sorted(known, key=lambda step: (sign * known[step], -step))[:1])
    return sorted(set(metrics) - stay)


def grows(metric: str) -> bool:
    """Losses and error rates get better by falling, accuracies by growing."""
    return "accuracy" in metric


def _metric(path: Path) -> float | None:
    try:
        return manifest.read(path).metric
    except manifest.Damaged:
        return None
