"""Non-negative least squares of the profile's constants, without measurements that other work disturbed."""

from __future__ import annotations

from collections.abc import Sequence

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
    # Loading scipy takes 0.8 s, which only commands that read a profile should pay.
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import nnls  # noqa: PLC0415

    matrix = np.array(rows, dtype=float) / np.array(targets, dtype=float)[:, None]
    values, _ = nnls(matrix, np.ones(len(targets)))
    return [float(value) for value in values]
