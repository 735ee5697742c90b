"""`python -m simulator.fit`: the constants of hardware/rates.py from data/*runs.csv, written to data/rates.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.hardware.rates import DATA, Rates, rate_bounds
from simulator.rows.measured import MeasuredRun, load_measured_runs
from simulator.step.prediction import TransformerStep

ROUNDS = 6
INNER_ROUNDS = 12
NOISE = 0.08
"""Standard deviation of log(predicted / measured) that no constant explains."""
OUTLIER = 0.15
"""Errors far beyond this count for little."""
SOURCE = 0.08
"""Standard deviation of what all runs of one source share: a cluster's weather, a release, a way of measuring."""
BELIEF = 0.1
"""How far a constant strays from its start before runs must insist, as a share of its range."""
SAY = 16
"""Runs' worth of say that one source has at most: its runs resemble each other."""
MOST = 48
"""Runs of one source that are looked at, spread over all it has."""
TINY = 1e-12
ENOUGH = 1e-3
"""Share of the cost below which a round's gain ends the search."""

RATE_NAMES = tuple(one.name for one in fields(Rates) if one.metadata)
Array = np.ndarray[Any, np.dtype[np.float64]]


def fit_rates(runs: Sequence[MeasuredRun], near: Rates | None = None) -> Rates:
    """Least squares on log errors with few outliers' say, one offset per source, and what was believed before.

    `near` is where the search begins; it has no say in where it ends.
    """
    problem = _Problem(runs)
    here = _values(near or Rates())
    errors = problem.errors(here)
    cost = problem.cost(errors, here)
    for _ in range(ROUNDS):
        aim = problem.linear_best(errors, problem.slopes(here, errors), here)
        for share in (1.0, 0.5, 0.2):
            tried = here + share * (aim - here)
            tried_errors = problem.errors(tried)
            tried_cost = problem.cost(tried_errors, tried)
            if tried_cost < cost:
                break
        else:
            break
        done = cost - tried_cost < ENOUGH * cost
        here, errors, cost = tried, tried_errors, tried_cost
        if done:
            break
    return _rates(here)


def step_s(run: MeasuredRun, rates: Rates) -> float:
    return sum(TransformerStep(run.run.model, run.run.system, rates).parts(run.run.layout).values())


class _Problem:
    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = _spread(runs)
        sources = sorted({run.source for run in self.runs})
        self.share: Array = np.array([[float(run.source == source) for source in sources] for run in self.runs])
        each = np.minimum(1.0, SAY / self.share.sum(axis=0))
        self.say: Array = self.share @ each / NOISE**2
        self.start = _values(Rates())
        self.low, self.high = np.array([rate_bounds(name) for name in RATE_NAMES]).T
        self.scale: Array = (self.high - self.low) * BELIEF
        self.measured: Array = np.log([run.step_s for run in self.runs])
        self.asked: np.ndarray[Any, np.dtype[np.bool_]] = np.array([_asked(run) for run in self.runs])

    def errors(self, values: Array) -> Array:
        rates = _rates(values)
        found: Array = np.log([step_s(run, rates) for run in self.runs]) - self.measured
        return found

    def slopes(self, values: Array, errors: Array) -> Array:
        columns = []
        for index in range(values.size):
            room = self.high[index] - self.low[index]
            step = 1e-3 * room * (1 if values[index] < self.low[index] + room / 2 else -1)
            moved = values.copy()
            moved[index] += step
            columns.append(self._slope(index, _rates(moved), errors) / step)
        return np.array(columns).T

    def _slope(self, index: int, moved: Rates, errors: Array) -> Array:
        """What moving one constant adds to the errors; most runs have nothing to do with most constants."""
        found: Array = np.zeros(errors.size)
        for row in np.flatnonzero(self.asked[:, index]):
            found[row] = np.log(step_s(self.runs[row], moved)) - self.measured[row] - errors[row]
        return found

    def cost(self, errors: Array, values: Array) -> float:
        offsets = self.offsets(errors)
        residuals = errors - self.share @ offsets
        data = (self.say * OUTLIER**2 * np.log1p((residuals / OUTLIER) ** 2)).sum()
        return float(data + ((offsets / SOURCE) ** 2).sum() + (((values - self.start) / self.scale) ** 2).sum())

    def offsets(self, errors: Array) -> Array:
        """The best ones for these errors."""
        found: Array = np.zeros(self.share.shape[1])
        for _ in range(INNER_ROUNDS):
            weights = self._weights(errors - self.share @ found)
            found = (self.share.T @ (weights * errors)) / (self.share.T @ weights + SOURCE**-2)
        return found

    def linear_best(self, errors: Array, slopes: Array, here: Array) -> Array:
        """Where the cost would be least if errors were straight lines."""
        design = np.hstack([slopes, -self.share])
        belief = np.concatenate([self.scale**-2, np.full(self.share.shape[1], SOURCE**-2)])
        centre = np.concatenate([self.start - here, np.zeros(self.share.shape[1])])
        move: Array = np.concatenate([np.zeros(here.size), self.offsets(errors)])
        for _ in range(INNER_ROUNDS):
            weights = self._weights(errors + design @ move)
            normal = design.T @ (weights[:, None] * design) + np.diag(belief)
            target = -design.T @ (weights * errors) + belief * centre
            move = self._inside(normal, target, here)
        return here + move[: here.size]

    def _inside(self, normal: Array, target: Array, here: Array) -> Array:
        """Constants that would leave their bounds stay on them; the others make up for it."""
        free = np.ones(target.size, dtype=bool)
        move: Array = np.zeros(target.size)
        for _ in range(target.size):
            rest = target[free] - normal[np.ix_(free, ~free)] @ move[~free]
            move[free] = np.linalg.solve(normal[np.ix_(free, free)], rest)
            inside = np.clip(here + move[: here.size], self.low, self.high) - here
            beyond = free[: here.size] & (np.abs(inside - move[: here.size]) > TINY)
            if not beyond.any():
                break
            move[: here.size] = inside
            free[: here.size] &= ~beyond
        return move

    def _weights(self, residuals: Array) -> Array:
        weights: Array = self.say / (1 + (residuals / OUTLIER) ** 2)
        return weights


class _Listening:
    """Constants that note which of them were asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._rates = Rates()

    def __getattr__(self, name: str) -> float:
        self.names.add(name)
        found: float = getattr(self._rates, name)
        return found


def _asked(run: MeasuredRun) -> list[bool]:
    listening = _Listening()
    step_s(run, listening)  # type: ignore[arg-type]  # it has all that a Rates has
    return [name in listening.names for name in RATE_NAMES]


def _spread(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    found: list[MeasuredRun] = []
    for source in sorted({run.source for run in runs}):
        own = [run for run in runs if run.source == source and run.step_s > 0]
        found += [own[index * len(own) // min(MOST, len(own))] for index in range(min(MOST, len(own)))]
    return found


def _values(rates: Rates) -> Array:
    return np.array([getattr(rates, name) for name in RATE_NAMES])


def _rates(values: Array) -> Rates:
    return Rates(**{name: float(value) for name, value in zip(RATE_NAMES, values, strict=True)})


def main() -> None:
    rates = fit_rates(load_measured_runs())
    lines = [
        "# Written by `python -m simulator.fit` from data/*runs.csv; meanings and bounds are in hardware/rates.py.",
        "rates:",
    ]
    lines += [f"  {name}: {getattr(rates, name):.5g}" for name in RATE_NAMES]
    DATA.write_text("\n".join(lines) + "\n")
    print(DATA.read_text(), end="")
