"""Predict tables of runs with the columns of data/runs.csv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.hardware.rates import Rates
from simulator.memory.peak import GIB
from simulator.rows.cells import RowError
from simulator.rows.measured import DATA
from simulator.rows.run import ParsedRun, parse_run_row
from simulator.rows.tables import read_header
from simulator.step.interval import interval_factors
from simulator.step.prediction import Prediction, predict

ADDED_COLUMNS = (
    "predicted_step_time_s",
    "predicted_low_s",
    "predicted_high_s",
    "predicted_memory_gb",
    "inferred",
    "error",
)
MIN_STEP_S, MAX_STEP_S = 1e-6, 1e7
"""A step outside these bounds means that the row has wrong sizes."""


def list_columns() -> tuple[str, ...]:
    """Return the columns that a table of runs may have."""
    return (*read_header(DATA), "accumulation", *ADDED_COLUMNS)


def predict_rows(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows with their predictions, or with an error if a row is invalid."""
    return [{**row, **dict(zip(ADDED_COLUMNS, _predict_row(row), strict=True))} for row in rows]


def predict_run(parsed: ParsedRun, rates: Rates | None = None) -> tuple[Prediction, float, float]:
    """Predict a run; its interval grows with what had to be inferred."""
    prediction = predict(parsed.model, parsed.layout, parsed.system, rates)
    gpus = parsed.layout.gpus
    low, high = interval_factors(prediction.parts, prediction.step_s, parsed.system, gpus, parsed.inferred)
    return prediction, prediction.step_s * low, prediction.step_s * high


def _predict_row(row: Mapping[str, str]) -> tuple[str, ...]:
    try:
        parsed = parse_run_row(row)
        prediction, low, high = predict_run(parsed)
        if not MIN_STEP_S < prediction.step_s < MAX_STEP_S:
            raise RowError(
                f"step: {prediction.step_s:.3g} s; allowed: {MIN_STEP_S:g} to {MAX_STEP_S:g} s; check the sizes"
            )
    except RowError as error:
        return "", "", "", "", "", str(error)
    except (ArithmeticError, ValueError, LookupError, AssertionError) as unexpected:
        # One bad row must not stop the others.
        return "", "", "", "", "", f"row: {type(unexpected).__name__} {unexpected}; allowed: a run that can be built"
    memory = prediction.memory.reported / GIB
    figures = (prediction.step_s, low, high, memory)
    return (*(f"{figure:.6g}" for figure in figures), "; ".join(parsed.inferred), "")
