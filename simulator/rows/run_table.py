"""A table of runs (the columns of data/runs.csv) with what the model says of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.hardware.rates import Rates
from simulator.memory.peak import GIB
from simulator.rows.measured import DATA
from simulator.rows.run import ParsedRun, parse_run_row
from simulator.rows.tables import read_header
from simulator.rows.values import RowError
from simulator.step.interval import interval_factors
from simulator.step.prediction import Prediction, predict

ADDED = (
    "predicted_step_time_s",
    "predicted_low_s",
    "predicted_high_s",
    "predicted_memory_gb",
    "inferred",
    "error",
)
SHORTEST_S, LONGEST_S = 1e-6, 1e7
"""A step outside of these is no step of anything that was ever built."""


def list_columns() -> tuple[str, ...]:
    """That a table of runs may have."""
    return (*read_header(DATA), "accumulation", *ADDED)


def predict_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The rows with their predictions; an error instead where a row is impossible."""
    return [{**row, **dict(zip(ADDED, _answer(row), strict=True))} for row in rows]


def predict_run(described: ParsedRun, rates: Rates | None = None) -> tuple[Prediction, float, float]:
    """With an interval that is as wide as what had to be inferred makes it."""
    found = predict(described.model, described.layout, described.system, rates)
    gpus = described.layout.gpus
    low, high = interval_factors(found.parts, found.step_s, described.system, gpus, described.inferred)
    return found, found.step_s * low, found.step_s * high


def _answer(row: Mapping[str, str]) -> tuple[str, ...]:
    try:
        described = parse_run_row(row)
        found, low, high = predict_run(described)
        if not SHORTEST_S < found.step_s < LONGEST_S:
            raise RowError(f"step: {found.step_s:.3g} s; allowed: {SHORTEST_S:g} to {LONGEST_S:g} s; check the sizes")
    except RowError as impossible:
        return "", "", "", "", "", str(impossible)
    except (ArithmeticError, ValueError, LookupError, AssertionError) as unforeseen:
        # A row must never end the others.
        return "", "", "", "", "", f"row: {type(unforeseen).__name__} {unforeseen}; allowed: a run that can be built"
    memory = found.memory.reported / GIB
    figures = (found.step_s, low, high, memory)
    return (*(f"{figure:.6g}" for figure in figures), "; ".join(described.inferred), "")
