"""Prepare the numbers of a run for drawing: a limited number of points, smoothing, and the scale of the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trainer.report.run_folder import Line

MAX_POINTS = 600
_LOG_SCALE_RATIO = 30.0
_OUTLIER_RATIO = 3.0


@dataclass(frozen=True)
class Curve:
    """The points of a line chart."""

    steps: list[float]
    values: list[float]


def make_curve(lines: Sequence[Line], key: str, factor: float = 1.0) -> Curve:
    """Return the values of a metric, averaged over neighbours if there are too many; NaN and infinity are left out."""
    points = [(line["step"], line[key] * factor) for line in lines if math.isfinite(line.get(key, math.nan))]
    size = math.ceil(len(points) / MAX_POINTS) or 1
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return Curve(
        [sum(step for step, _ in chunk) / len(chunk) for chunk in chunks],
        [sum(value for _, value in chunk) / len(chunk) for chunk in chunks],
    )


def find_not_finite(lines: Sequence[Line], key: str) -> list[int]:
    """Return the steps in which a metric is NaN or infinite."""
    return [line["step"] for line in lines if key in line and not math.isfinite(line[key])]


def smooth(values: Sequence[float]) -> list[float]:
    """Return the running mean over a thirtieth of the curve."""
    reach = max(len(values) // 60, 1)
    sums = list(accumulate(values, initial=0.0))
    windows = [(max(i - reach, 0), min(i + reach + 1, len(values))) for i in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in windows]


def needs_log_scale(values: Sequence[float]) -> bool:
    """Return whether all values are positive and span orders of magnitude."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_SCALE_RATIO


def find_upper_limit(values: Sequence[float]) -> float | None:
    """Return the upper limit of an axis if outliers, such as a first step that compiles, would flatten the others."""
    if not values:
        return None
    ranked = sorted(values)
    usual = ranked[min(int(len(ranked) * 0.95), len(ranked) - 1)] if len(ranked) > 20 else ranked[len(ranked) // 2]  # noqa: PLR2004
    return usual * 1.2 if ranked[-1] > _OUTLIER_RATIO * usual else None
