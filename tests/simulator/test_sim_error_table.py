"""The committed error table: the committed constants reproduce it, and every error is within its bound.

benchmarks/simulator_fit.py writes the table. Its refits take minutes, so only the nightly run repeats them.
"""

from __future__ import annotations

import pytest

from benchmarks.simulator_fit import (
    FIRST_COLLECTIVES,
    SYSTEMS_LEFT_OUT,
    broken_bounds,
    committed,
    differences,
    in_use,
    left_out,
)
from simulator.collectives.constants import parse_constants
from simulator.fit.collective_errors import group_measured_rows
from simulator.fit.collectives import PRIOR_CONSTANTS, fit_constants, loss
from simulator.rows.tables import read_table

HINT = "after changing the model, the data or the constants, run `python -m benchmarks.simulator_fit --write`"


def test_the_committed_constants_reproduce_the_committed_errors() -> None:
    assert differences(in_use(), committed(), 0.0005) == [], HINT


def test_every_committed_error_keeps_its_bound() -> None:
    assert broken_bounds(committed()) == []


def test_only_the_system_without_a_gpu_type_has_no_prediction() -> None:
    first, held_out = (committed()[name]["all"] for name in ("collectives_in_use", "collectives_held_out"))
    assert first["answered"] == first["rows"] - 15
    assert held_out["answered"] == held_out["rows"]


def test_exceeded_bound_is_reported() -> None:
    table = committed()
    table["runs_left_out"]["all"]["median"] = 0.5
    table["runs_left_out"]["all"]["rows"] = 1
    assert broken_bounds(table) == [
        "runs_left_out, all: median is 0.5, allowed: at most 0.08",
        "runs_left_out, all: rows is 1, allowed: at least 701",
    ]
    changes = {"runs_left_out": {"all": {"median": 0.4}}}
    assert differences(changes, table, 0.01) == ["runs_left_out, all: median is 0.4, in the committed table 0.5"]


@pytest.mark.nightly
def test_refits_reproduce_the_cross_validation_errors() -> None:
    assert differences(left_out(), committed(), 0.005) == [], HINT


@pytest.mark.nightly
@pytest.mark.parametrize("system", SYSTEMS_LEFT_OUT)
def test_fitted_collectives_beat_the_prior(system: str) -> None:
    others = [row for row in group_measured_rows(read_table(FIRST_COLLECTIVES)) if row.system.name != system]
    assert loss(others, parse_constants(fit_constants(others))) < loss(others, parse_constants(PRIOR_CONSTANTS))
