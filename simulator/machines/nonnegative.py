"""Least squares with a few non-negative unknowns, such as times and rates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

DISTURBED = 1.25
"""A measurement this many times above the first solution was disturbed by other work on the machine."""


def solve_quiet(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Solve again without disturbed measurements: noise only ever adds time."""
    first = solve(rows, targets)
    undisturbed = [
        (row, target)
        for row, target in zip(rows, targets, strict=True)
        if target <= DISTURBED * sum(x * y for x, y in zip(first, row, strict=True))
    ]
    enough = len(undisturbed) > len(first)
    return solve([row for row, _ in undisturbed], [target for _, target in undisturbed]) if enough else first


def solve(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Return the unknowns; errors are relative to their target, so that small and large sizes weigh the same."""
    import numpy as np  # noqa: PLC0415  # slow to import

    matrix = np.array(rows, dtype=float) / np.array(targets, dtype=float)[:, None]
    ones = np.ones(len(targets))
    count = matrix.shape[1]
    best, best_error = [0.0] * count, float("inf")
    for used in (list(used) for size in range(1, count + 1) for used in combinations(range(count), size)):
        values = np.linalg.lstsq(matrix[:, used], ones, rcond=None)[0]
        error = float(np.sum((matrix[:, used] @ values - ones) ** 2))
        if (values >= 0).all() and error < best_error - 1e-12:
            best, best_error = [0.0] * count, error
            for place, value in zip(used, values, strict=True):
                best[place] = float(value)
    return best
