"""Least squares of a few unknowns of which none is negative: times, rates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

DISTURBED = 1.25
"""A measurement that is so many times what the others say had something in its way."""


def solve_quiet(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Without those that were disturbed: noise only ever adds time."""
    first = solve(rows, targets)
    kept = [
        (row, target)
        for row, target in zip(rows, targets, strict=True)
        if target <= DISTURBED * sum(x * y for x, y in zip(first, row, strict=True))
    ]
    enough = len(kept) > len(first)
    return solve([row for row, _ in kept], [target for _, target in kept]) if enough else first


def solve(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Errors count relative to their target, so that small and large sizes weigh the same."""
    import numpy as np  # noqa: PLC0415  # slow to import

    matrix = np.array(rows, dtype=float) / np.array(targets, dtype=float)[:, None]
    wanted = np.ones(len(targets))
    count = matrix.shape[1]
    best, best_error = [0.0] * count, float("inf")
    for kept in (list(kept) for size in range(1, count + 1) for kept in combinations(range(count), size)):
        found = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0]
        error = float(np.sum((matrix[:, kept] @ found - wanted) ** 2))
        if (found >= 0).all() and error < best_error - 1e-12:
            best, best_error = [0.0] * count, error
            for place, value in zip(kept, found, strict=True):
                best[place] = float(value)
    return best
