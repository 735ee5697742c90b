"""Fit the constants of hardware/rates.py to data/*runs.csv and write them to data/rates.yaml.

scipy's least squares minimizes the squares of three kinds of residuals: the errors of the runs (less an offset per
source, with a robust loss), the offsets, and the distances of the constants from their priors, within bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from simulator.hardware.rates import DATA, Rates, rate_bounds
from simulator.rows.measured import MeasuredRun, load_measured_runs
from simulator.step.prediction import TransformerStep

MAX_EVALUATIONS = 30
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
SMALL_SHARE = 1e-6
"""Errors below this share of OUTLIER_ERROR have a loss without any robustness."""
TOLERANCE = 1e-4
"""Relative decrease of the cost below which the search ends."""

RATE_NAMES = tuple(field.name for field in fields(Rates) if field.metadata)
Array = np.ndarray[Any, np.dtype[np.float64]]


def fit_rates(runs: Sequence[MeasuredRun], near: Rates | None = None) -> Rates:
    """Fit the constants to measured runs; `near` is where the search starts and does not affect the optimum."""
    residuals = _Residuals(runs)
    unbounded = np.full(residuals.sources, np.inf)
    fitted = least_squares(
        residuals.of,
        np.concatenate([_to_array(near or Rates()), np.zeros(residuals.sources)]),
        residuals.slopes,
        bounds=(np.concatenate([residuals.low, -unbounded]), np.concatenate([residuals.high, unbounded])),
        x_scale=np.concatenate([residuals.scale, np.full(residuals.sources, SOURCE_SPREAD)]),
        ftol=TOLERANCE,
        max_nfev=MAX_EVALUATIONS,
    )
    return _to_rates(np.clip(fitted.x[: len(RATE_NAMES)], residuals.low, residuals.high))


def step_s(run: MeasuredRun, rates: Rates) -> float:
    """Return the predicted seconds of a run's step with these constants."""
    return sum(TransformerStep(run.run.model, run.run.system, rates).parts(run.run.layout).values())


class _Residuals:
    """The residuals of a vector of constants and offsets on measured runs, and their derivatives."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = _spread(runs)
        names = sorted({run.source for run in self.runs})
        self.sources = len(names)
        self.membership: Array = np.array([[float(run.source == name) for name in names] for run in self.runs])
        run_weights = np.minimum(1.0, MAX_SOURCE_WEIGHT / self.membership.sum(axis=0))
        self.weights: Array = np.sqrt(self.membership @ run_weights) / NOISE
        self.prior = _to_array(Rates())
        self.low, self.high = np.array([rate_bounds(name) for name in RATE_NAMES]).T
        self.scale: Array = (self.high - self.low) * PRIOR_SPREAD
        self.measured: Array = np.log([run.step_s for run in self.runs])
        self.depends: np.ndarray[Any, np.dtype[np.bool_]] = np.array([_dependencies(run) for run in self.runs])

    def of(self, values: Array) -> Array:
        """Return the residuals: of the runs, of the constants, of the offsets."""
        constants, offsets = np.split(values, [len(RATE_NAMES)])
        robust, _ = _robust(self._errors(constants) - self.membership @ offsets)
        return np.concatenate([self.weights * robust, (constants - self.prior) / self.scale, offsets / SOURCE_SPREAD])

    def slopes(self, values: Array) -> Array:
        """Return the derivatives of the residuals, by finite differences where they depend on predictions."""
        constants, offsets = np.split(values, [len(RATE_NAMES)])
        errors = self._errors(constants)
        _, slope = _robust(errors - self.membership @ offsets)
        by_error = (self.weights * slope)[:, None]
        return np.block(
            [
                [by_error * self._error_slopes(constants, errors), -by_error * self.membership],
                [np.diag(1 / self.scale), np.zeros((constants.size, offsets.size))],
                [np.zeros((offsets.size, constants.size)), np.eye(offsets.size) / SOURCE_SPREAD],
            ]
        )

    def _errors(self, constants: Array) -> Array:
        """Return log(predicted / measured) of each run."""
        rates = _to_rates(constants)
        errors: Array = np.log([step_s(run, rates) for run in self.runs]) - self.measured
        return errors

    def _error_slopes(self, constants: Array, errors: Array) -> Array:
        """Return the derivatives of the errors by finite differences that stay inside the bounds."""
        slopes: Array = np.zeros((errors.size, constants.size))
        for index, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            step = 1e-3 * (high - low) * (1 if constants[index] < (low + high) / 2 else -1)
            moved = constants.copy()
            moved[index] += step
            rates = _to_rates(moved)
            # Most runs do not depend on most constants.
            for row in np.flatnonzero(self.depends[:, index]):
                error = np.log(step_s(self.runs[row], rates)) - self.measured[row]
                slopes[row, index] = (error - errors[row]) / step
        return slopes


def _robust(errors: Array) -> tuple[Array, Array]:
    """Return residuals whose squares are the Cauchy loss of the errors, and their derivatives."""
    shares = errors / OUTLIER_ERROR
    residuals: Array = np.sign(shares) * OUTLIER_ERROR * np.sqrt(np.log1p(shares**2))
    small = np.abs(shares) < SMALL_SHARE
    slopes: Array = np.where(small, 1.0, errors / np.where(small, 1.0, residuals) / (1 + shares**2))
    return residuals, slopes


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
