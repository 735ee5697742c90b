"""Numbers of a run made fit to draw: a value per step, few enough points, a scale that shows them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainer.report.run_folder import Line

MOST_POINTS = 600
_WIDE = 30.0
_OUTLIER = 3.0


@dataclass(frozen=True)
class Curve:
    steps: list[float]
    values: list[float]


def curve(lines: Sequence[Line], key: str, factor: float = 1.0) -> Curve:
    """Means of neighbours where there are too many lines; values that are no number are left out."""
    points = [(line["step"], line[key] * factor) for line in lines if math.isfinite(line.get(key, math.nan))]
    size = math.ceil(len(points) / MOST_POINTS) or 1
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return Curve(
        [sum(step for step, _ in chunk) / len(chunk) for chunk in chunks],
        [sum(value for _, value in chunk) / len(chunk) for chunk in chunks],
    )


def not_finite(lines: Sequence[Line], key: str) -> list[int]:
    return [line["step"] for line in lines if key in line and not math.isfinite(line[key])]


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbours on both sides, a thirtieth of the curve in all."""
    reach = max(len(values) // 60, 1)
    sums = list(accumulate(values, initial=0.0))
    windows = [(max(i - reach, 0), min(i + reach + 1, len(values))) for i in range(len(values))]
    return [(sums[end] - sums[begin]) / (end - begin) for begin, end in windows]


def is_wide(values: Sequence[float]) -> bool:
    """A logarithmic scale shows more: all positive, over several sizes."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _WIDE


def ceiling(values: Sequence[float]) -> float | None:
    """Where to cut a picture off so that a first step that compiled does not flatten all others; None for nowhere."""
    if not values:
        return None
    ranked = sorted(values)
    usual = ranked[min(int(len(ranked) * 0.95), len(ranked) - 1)] if len(ranked) > 20 else ranked[len(ranked) // 2]  # noqa: PLR2004
    return usual * 1.2 if ranked[-1] > _OUTLIER * usual else None
