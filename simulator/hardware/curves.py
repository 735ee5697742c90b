"""Measured times between the points that were measured: matrix products by shape, exchanges by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

NEAR = 0.05
"""Added to squared distances between shapes in powers of e: how much a close neighbour outweighs others."""
ALIKE = {"reduce_scatter": "all_gather", "all_to_all": "all_gather", "send": "all_gather"}
"""What an exchange that was not measured is like: the same bytes cross the links."""


@dataclass(frozen=True, eq=False)
class ProductCurve:
    """By dtype: rows, columns, inner width and seconds of products."""

    points: Mapping[str, Sequence[tuple[float, float, float, float]]]

    def seconds(self, rows: int, columns: int, inner: int, dtype: str) -> float:
        """By the rate of products of a like shape: the nearer, the more one counts."""
        weights = rates = 0.0
        for m, n, k, took in self.points.get(dtype) or next(iter(self.points.values())):
            apart = log(rows / m) ** 2 + log(columns / n) ** 2 + log(inner / k) ** 2
            weight = 1 / (apart + NEAR) ** 2
            weights += weight
            rates += weight * log(m * n * k / took)
        return rows * columns * inner / exp(rates / weights)


@dataclass(frozen=True, eq=False)
class ExchangeCurve:
    """Seconds by operation, ranks, ranks in a node, and bytes of the whole array."""

    points: Mapping[tuple[str, int, int], Sequence[tuple[float, float]]]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, float | str]]) -> ExchangeCurve:
        points: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
        for row in rows:
            key = (str(row["op"]), int(row["ranks"]), int(row["per_node"]))
            points.setdefault(key, []).append((float(row["size"]), float(row["seconds"])))
        return cls({key: _rising(sorted(found)) for key, found in points.items()})

    def seconds(self, op: str, size: float, ranks: int, per_node: int) -> float:
        """Of a group that was not measured: as that of the nearest size, by the bytes that cross a link."""
        if ranks <= 1 or size <= 0:
            return 0.0
        wanted = op if any(key[0] == op for key in self.points) else ALIKE.get(op, op)
        inside = per_node >= ranks
        found = min(
            (key for key in self.points if key[0] == wanted),
            key=lambda key: ((key[2] >= key[1]) != inside, abs(log(key[1] / ranks))),
        )
        crossed = (ranks - 1) / ranks / ((found[1] - 1) / found[1])
        return crossed * _between(self.points[found], size)


def _rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """More bytes never take less time: a slower small one was disturbed."""
    most, found = float("inf"), []
    for size, seconds in reversed(points):
        most = min(most, seconds)
        found.append((size, most))
    return found[::-1]


def _between(points: Sequence[tuple[float, float]], size: float) -> float:
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
