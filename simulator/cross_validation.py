"""Predictions of every run by constants that were fitted without its source, or without its system."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.fit import fit
from simulator.measured import Measured
from simulator.run_errors import Compared, compared


def without_its_source(runs: Sequence[Measured]) -> list[Compared]:
    return _left_out(runs, lambda run: run.source)


def without_its_system(runs: Sequence[Measured]) -> list[Compared]:
    return _left_out(runs, lambda run: run.run.system.name)


def _left_out(runs: Sequence[Measured], key: Callable[[Measured], str]) -> list[Compared]:
    everything = fit(runs)
    found: list[Compared] = []
    for name in sorted({key(run) for run in runs}):
        rates = fit([run for run in runs if key(run) != name], near=everything)
        found += compared([run for run in runs if key(run) == name], rates)
    return found
