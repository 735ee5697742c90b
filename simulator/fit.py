"""`python -m simulator.fit`: the constants of rates.py from the measured runs of data/runs.csv, written to data/rates.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from simulator.measured import Measured, measured_runs
from simulator.rates import DATA, Rates, bounds
from simulator.step import Estimate

ROUNDS = 25
NOISE = 0.08
"""Standard deviation of log(predicted / measured) that no constant explains."""
OUTLIER = 0.2
"""Errors far beyond this count for little."""
SOURCE = 0.08
"""Standard deviation of what all runs of one source share: a cluster's weather, a release, a way of measuring."""
BELIEF = 0.2
"""How far a constant strays from its start before runs must insist, as a share of its range."""

NAMES = tuple(one.name for one in fields(Rates))
Array = np.ndarray[Any, np.dtype[np.float64]]


def fit(runs: Sequence[Measured]) -> Rates:
    """Least squares on log errors with few outliers' say, one offset per source, and what was believed before."""
    start = _start()
    sources = sorted({run.source for run in runs})
    share = _share(runs, sources)
    scale = np.array([bounds(name)[1] - bounds(name)[0] for name in NAMES]) * BELIEF
    here, offsets, damping = start.copy(), np.zeros(len(sources)), 1e-3
    cost = _cost(_errors(runs, here), offsets, share, (here - start) / scale)
    for _ in range(ROUNDS):
        errors = _errors(runs, here)
        slopes = _slopes(runs, here, errors)
        move, shift = _solve(errors, slopes, offsets, share, (here - start) / scale, scale, damping)
        tried, tried_offsets = _inside(here + move), offsets + shift
        tried_cost = _cost(_errors(runs, tried), tried_offsets, share, (tried - start) / scale)
        if tried_cost < cost:
            done = cost - tried_cost < 1e-4 * cost
            here, offsets, cost, damping = tried, tried_offsets, tried_cost, damping / 3
            if done:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return _rates(here)


def _start() -> Array:
    return np.array([getattr(Rates(), name) for name in NAMES])


def _rates(values: Array) -> Rates:
    return Rates(**{name: float(value) for name, value in zip(NAMES, values, strict=True)})


def _inside(values: Array) -> Array:
    low, high = np.array([bounds(name) for name in NAMES]).T
    return np.clip(values, low, high)


def _errors(runs: Sequence[Measured], values: Array) -> Array:
    rates = _rates(values)
    return np.array([np.log(step_s(run, rates) / run.step_s) for run in runs])


def step_s(run: Measured, rates: Rates) -> float:
    return sum(Estimate(run.run.model, run.run.system, rates).parts(run.run.layout).values())


def _slopes(runs: Sequence[Measured], values: Array, errors: Array) -> Array:
    columns = []
    for index, name in enumerate(NAMES):
        low, high = bounds(name)
        step = 1e-3 * (high - low) * (1 if values[index] < (low + high) / 2 else -1)
        moved = values.copy()
        moved[index] += step
        columns.append((_errors(runs, moved) - errors) / step)
    return np.array(columns).T


def _share(runs: Sequence[Measured], sources: list[str]) -> Array:
    """Rows to sources, weighted so that a source with many runs does not drown the others."""
    rows = np.array([[float(run.source == source) for source in sources] for run in runs])
    return rows


def _weights(residuals: Array, share: Array) -> Array:
    many = share @ (share.sum(axis=0) ** -0.5)
    weights: Array = many * 4 / NOISE**2 / (1 + (residuals / OUTLIER) ** 2)
    return weights


def _cost(errors: Array, offsets: Array, share: Array, strayed: Array) -> float:
    residuals = errors - share @ offsets
    many = share @ (share.sum(axis=0) ** -0.5)
    data = (many * 4 / NOISE**2 * OUTLIER**2 * np.log1p((residuals / OUTLIER) ** 2)).sum()
    return float(data + ((offsets / SOURCE) ** 2).sum() + (strayed**2).sum())


def _solve(
    errors: Array, slopes: Array, offsets: Array, share: Array, strayed: Array, scale: Array, damping: float
) -> tuple[Array, Array]:
    residuals = errors - share @ offsets
    weights = _weights(residuals, share)
    design = np.hstack([slopes, -share])
    normal = design.T @ (weights[:, None] * design)
    target = -design.T @ (weights * residuals)
    belief = np.concatenate([scale**-2, np.full(offsets.size, SOURCE**-2)])
    target -= np.concatenate([strayed / scale, offsets / SOURCE**2])
    normal += np.diag(belief + damping * (np.diag(normal) + belief))
    move = np.linalg.solve(normal, target)
    return move[: scale.size], move[scale.size :]


def main() -> None:
    rates = fit(measured_runs())
    lines = [
        "# Written by `python -m simulator.fit` from data/runs.csv; meanings and bounds are in rates.py.",
        "rates:",
    ]
    lines += [f"  {name}: {value:.5g}" for name, value in asdict(rates).items()]
    DATA.write_text("\n".join(lines) + "\n")
    print(DATA.read_text(), end="")


if __name__ == "__main__":
    main()
