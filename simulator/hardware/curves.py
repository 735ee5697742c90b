"""Interpolate measured times: matrix products by shape, collectives by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

SMOOTHING = 0.05
"""Added to squared log distances between shapes: limits how much a close neighbor outweighs the others."""
SUBSTITUTES = {"reduce_scatter": "all_gather", "all_to_all": "all_gather", "send": "all_gather"}
"""Measured collective to use for one that was not measured: the same bytes cross the links."""


@dataclass(frozen=True, eq=False)
class ProductCurve:
    """Measured matrix products of one kind of GPU."""

    points: Mapping[str, Sequence[tuple[float, float, float, float]]]
    """Rows, columns, inner width and seconds of each product, by dtype."""

    def seconds(self, rows: int, columns: int, inner: int, dtype: str) -> float:
        """Return the time of a product from the rates of measured products, weighted by similarity of shape."""
        weights = rates = 0.0
        for m, n, k, measured_s in self.points.get(dtype) or next(iter(self.points.values())):
            distance = log(rows / m) ** 2 + log(columns / n) ** 2 + log(inner / k) ** 2
            weight = 1 / (distance + SMOOTHING) ** 2
            weights += weight
            rates += weight * log(m * n * k / measured_s)
        return rows * columns * inner / exp(rates / weights)


@dataclass(frozen=True, eq=False)
class ExchangeCurve:
    """Measured collectives of one system."""

    points: Mapping[tuple[str, int, int], Sequence[tuple[float, float]]]
    """Bytes of the full array and seconds, by operation, ranks and ranks per node."""

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, float | str]]) -> ExchangeCurve:
        points: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
        for row in rows:
            key = (str(row["op"]), int(row["ranks"]), int(row["per_node"]))
            points.setdefault(key, []).append((float(row["size"]), float(row["seconds"])))
        return cls({key: _monotonic(sorted(measured)) for key, measured in points.items()})

    def seconds(self, op: str, size: float, ranks: int, per_node: int) -> float:
        """Return the time of a collective.

        A group that was not measured is scaled from the closest one by the bytes that cross a link.
        """
        if ranks <= 1 or size <= 0:
            return 0.0
        measured_op = op if any(key[0] == op for key in self.points) else SUBSTITUTES.get(op, op)
        inside = per_node >= ranks
        closest = min(
            (key for key in self.points if key[0] == measured_op),
            key=lambda key: ((key[2] >= key[1]) != inside, abs(log(key[1] / ranks))),
        )
        scale = (ranks - 1) / ranks / ((closest[1] - 1) / closest[1])
        return scale * _interpolate(self.points[closest], size)


def _monotonic(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Lower the time of a small size that took longer than a larger one: its measurement was disturbed."""
    limit, corrected = float("inf"), []
    for size, seconds in reversed(points):
        limit = min(limit, seconds)
        corrected.append((size, limit))
    return corrected[::-1]


def _interpolate(points: Sequence[tuple[float, float]], size: float) -> float:
    first, last = points[0], points[-1]
    if size <= first[0]:
        return first[1]
    if size >= last[0]:
        return last[1] * size / last[0]
    for (small, quick), (large, slow) in pairwise(points):
        if size <= large:
            share = (size - small) / (large - small)
            return quick + share * (slow - quick)
    return last[1]
