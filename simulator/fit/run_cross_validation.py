"""Predictions of every run by constants that were fitted without its source, or without its system."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.fit.rates import fit
from simulator.fit.run_errors import Compared, compared
from simulator.rows.measured import Measured

Progress = Callable[[str], None]


def without_its_source(runs: Sequence[Measured], progress: Progress = lambda _: None) -> list[Compared]:
    return _left_out(runs, lambda run: run.source, progress)


def without_its_system(runs: Sequence[Measured], progress: Progress = lambda _: None) -> list[Compared]:
    return _left_out(runs, lambda run: run.run.system.name, progress)


def names(runs: Sequence[Measured], by: str) -> list[str]:
    """Sources or systems with a measured step: what a fit can go by."""
    timed = (run for run in runs if run.step_s > 0)
    return sorted({run.source if by == "source" else run.run.system.name for run in timed})


def _left_out(runs: Sequence[Measured], key: Callable[[Measured], str], progress: Progress) -> list[Compared]:
    names = sorted({key(run) for run in runs})
    progress(f"with all {len(names)}")
    everything = fit(runs)
    found: list[Compared] = []
    for number, name in enumerate(names, 1):
        progress(f"without {name} ({number} of {len(names)})")
        rates = fit([run for run in runs if key(run) != name], near=everything)
        found += compared([run for run in runs if key(run) == name], rates)
    return found
