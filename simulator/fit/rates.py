"""Fit the constants of hardware/rates.py to data/*runs.csv and write them to data/rates.yaml.

The fit is not plain least squares: it has a robust loss (Cauchy), one offset per source, a prior and bounds for every
constant. It iterates Gauss-Newton steps with reweighted, bounded least squares inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.hardware.rates import DATA, Rates, rate_bounds
from simulator.rows.measured import MeasuredRun, load_measured_runs
from simulator.step.prediction import TransformerStep

ROUNDS = 6
REWEIGHTING_ROUNDS = 12
NOISE = 0.08
"""Standard deviation of log(predicted / measured) that no constant explains."""
OUTLIER_ERROR = 0.15
"""Scale of the robust loss: errors far beyond it count for little."""
SOURCE_SPREAD = 0.08
"""Standard deviation of the offset that all runs of a source share: its cluster, release and way of measuring."""
PRIOR_SPREAD = 0.1
"""Standard deviation of a constant around its prior, as a share of its range."""
MAX_SOURCE_WEIGHT = 16
"""Largest total weight of a source, in runs: its runs resemble each other."""
MAX_RUNS_PER_SOURCE = 48
"""Runs of a source that take part, evenly spaced over all of its runs."""
BOUND_TOLERANCE = 1e-12
MIN_GAIN = 1e-3
"""Relative decrease of the cost below which the search ends."""

RATE_NAMES = tuple(field.name for field in fields(Rates) if field.metadata)
Array = np.ndarray[Any, np.dtype[np.float64]]


def fit_rates(runs: Sequence[MeasuredRun], near: Rates | None = None) -> Rates:
    """Fit the constants to measured runs; `near` is where the search starts and does not affect the optimum."""
    cost_model = _FitCost(runs)
    here = _to_array(near or Rates())
    errors = cost_model.errors(here)
    cost = cost_model.cost(errors, here)
    for _ in range(ROUNDS):
        target = cost_model.linear_optimum(errors, cost_model.slopes(here, errors), here)
        for share in (1.0, 0.5, 0.2):
            candidate = here + share * (target - here)
            candidate_errors = cost_model.errors(candidate)
            candidate_cost = cost_model.cost(candidate_errors, candidate)
            if candidate_cost < cost:
                break
        else:
            break
        converged = cost - candidate_cost < MIN_GAIN * cost
        here, errors, cost = candidate, candidate_errors, candidate_cost
        if converged:
            break
    return _to_rates(here)


def step_s(run: MeasuredRun, rates: Rates) -> float:
    """Return the predicted seconds of a run's step with these constants."""
    return sum(TransformerStep(run.run.model, run.run.system, rates).parts(run.run.layout).values())


class _FitCost:
    """The cost of a vector of constants on measured runs, and its linearization."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = _spread(runs)
        sources = sorted({run.source for run in self.runs})
        self.membership: Array = np.array([[float(run.source == source) for source in sources] for run in self.runs])
        run_weights = np.minimum(1.0, MAX_SOURCE_WEIGHT / self.membership.sum(axis=0))
        self.weights: Array = self.membership @ run_weights / NOISE**2
        self.prior = _to_array(Rates())
        self.low, self.high = np.array([rate_bounds(name) for name in RATE_NAMES]).T
        self.scale: Array = (self.high - self.low) * PRIOR_SPREAD
        self.measured: Array = np.log([run.step_s for run in self.runs])
        self.depends: np.ndarray[Any, np.dtype[np.bool_]] = np.array([_dependencies(run) for run in self.runs])

    def errors(self, values: Array) -> Array:
        """Return log(predicted / measured) of each run."""
        rates = _to_rates(values)
        errors: Array = np.log([step_s(run, rates) for run in self.runs]) - self.measured
        return errors

    def slopes(self, values: Array, errors: Array) -> Array:
        """Return the derivatives of the errors by finite differences that stay inside the bounds."""
        columns = []
        for index in range(values.size):
            extent = self.high[index] - self.low[index]
            step = 1e-3 * extent * (1 if values[index] < self.low[index] + extent / 2 else -1)
            moved = values.copy()
            moved[index] += step
            columns.append(self._differences(index, _to_rates(moved), errors) / step)
        return np.array(columns).T

    def _differences(self, index: int, moved: Rates, errors: Array) -> Array:
        """Return the change of the errors when one constant moves; most runs do not depend on it."""
        differences: Array = np.zeros(errors.size)
        for row in np.flatnonzero(self.depends[:, index]):
            differences[row] = np.log(step_s(self.runs[row], moved)) - self.measured[row] - errors[row]
        return differences

    def cost(self, errors: Array, values: Array) -> float:
        offsets = self.offsets(errors)
        residuals = errors - self.membership @ offsets
        data = (self.weights * OUTLIER_ERROR**2 * np.log1p((residuals / OUTLIER_ERROR) ** 2)).sum()
        prior = (((values - self.prior) / self.scale) ** 2).sum()
        return float(data + ((offsets / SOURCE_SPREAD) ** 2).sum() + prior)

    def offsets(self, errors: Array) -> Array:
        """Return the best offset of each source for these errors."""
        offsets: Array = np.zeros(self.membership.shape[1])
        for _ in range(REWEIGHTING_ROUNDS):
            weights = self._robust_weights(errors - self.membership @ offsets)
            normal = self.membership.T @ weights + SOURCE_SPREAD**-2
            offsets = (self.membership.T @ (weights * errors)) / normal
        return offsets

    def linear_optimum(self, errors: Array, slopes: Array, here: Array) -> Array:
        """Return the constants with the least cost if the errors were linear in them."""
        design = np.hstack([slopes, -self.membership])
        sources = self.membership.shape[1]
        precision = np.concatenate([self.scale**-2, np.full(sources, SOURCE_SPREAD**-2)])
        centre = np.concatenate([self.prior - here, np.zeros(sources)])
        move: Array = np.concatenate([np.zeros(here.size), self.offsets(errors)])
        for _ in range(REWEIGHTING_ROUNDS):
            weights = self._robust_weights(errors + design @ move)
            normal = design.T @ (weights[:, None] * design) + np.diag(precision)
            target = -design.T @ (weights * errors) + precision * centre
            move = self._solve_bounded(normal, target, here)
        return here + move[: here.size]

    def _solve_bounded(self, normal: Array, target: Array, here: Array) -> Array:
        """Solve the normal equations; constants that would leave their bounds are fixed on them."""
        free = np.ones(target.size, dtype=bool)
        move: Array = np.zeros(target.size)
        for _ in range(target.size):
            remaining = target[free] - normal[np.ix_(free, ~free)] @ move[~free]
            move[free] = np.linalg.solve(normal[np.ix_(free, free)], remaining)
            inside = np.clip(here + move[: here.size], self.low, self.high) - here
            beyond = free[: here.size] & (np.abs(inside - move[: here.size]) > BOUND_TOLERANCE)
            if not beyond.any():
                break
            move[: here.size] = inside
            free[: here.size] &= ~beyond
        return move

    def _robust_weights(self, residuals: Array) -> Array:
        weights: Array = self.weights / (1 + (residuals / OUTLIER_ERROR) ** 2)
        return weights


class _RecordingRates:
    """Rates that record which constants are read."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._rates = Rates()

    def __getattr__(self, name: str) -> float:
        self.names.add(name)
        value: float = getattr(self._rates, name)
        return value


def _dependencies(run: MeasuredRun) -> list[bool]:
    """Return for each constant whether the prediction of a run reads it."""
    recording = _RecordingRates()
    step_s(run, recording)  # type: ignore[arg-type]  # it has all attributes of Rates
    return [name in recording.names for name in RATE_NAMES]


def _spread(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return up to MAX_RUNS_PER_SOURCE timed runs of each source, evenly spaced."""
    chosen: list[MeasuredRun] = []
    for source in sorted({run.source for run in runs}):
        own = [run for run in runs if run.source == source and run.step_s > 0]
        count = min(MAX_RUNS_PER_SOURCE, len(own))
        chosen += [own[index * len(own) // count] for index in range(count)]
    return chosen


def _to_array(rates: Rates) -> Array:
    return np.array([getattr(rates, name) for name in RATE_NAMES])


def _to_rates(values: Array) -> Rates:
    return Rates(**{name: float(value) for name, value in zip(RATE_NAMES, values, strict=True)})


def main() -> None:
    """Fit the constants to the committed runs, write and print them."""
    rates = fit_rates(load_measured_runs())
    lines = [
        "# Written by `python -m simulator.fit` from data/*runs.csv; meanings and bounds are in hardware/rates.py.",
        "rates:",
    ]
    lines += [f"  {name}: {getattr(rates, name):.5g}" for name in RATE_NAMES]
    DATA.write_text("\n".join(lines) + "\n")
    print(DATA.read_text(), end="")
