"""The tables of measured collectives, and the cross-validation by system and by source.

test_sim_error_table.py checks the size of the errors.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from simulator.collectives.constants import parse_constants
from simulator.fit.collective_errors import (
    cross_validate,
    cross_validation_table,
    errors_with_constants,
    group_by,
    group_measured_rows,
)
from simulator.fit.collectives import PRIOR_CONSTANTS, fit_constants
from simulator.rows.tables import read_table

DATA = Path(__file__).parents[2] / "simulator" / "data" / "collectives.csv"
LATER = DATA.with_name("new_collectives.csv")
"""Collected after the model was finished."""
HELD_OUT = DATA.with_name("collectives_held_out.csv")
"""Collected last; no constant was ever fitted to it."""


def test_every_row_names_its_source() -> None:
    rows = read_table(DATA) + read_table(LATER) + read_table(HELD_OUT)
    assert all(row["source"] and row["source_ref"] and row["coll_id"] for row in rows)
    assert len({row["coll_id"] for row in rows}) == len(rows)


def test_held_out_measurements_are_not_in_the_fitted_tables() -> None:
    def points(*files: Path) -> set[tuple[str, ...]]:
        names = ("gpu_type", "gpus", "op", "bytes", "time_us")
        return {tuple(row[name] for name in names) for file in files for row in read_table(file)}

    assert not points(HELD_OUT) & points(DATA, LATER)


def test_constants_without_measurements_keep_their_prior() -> None:
    constants = fit_constants(group_measured_rows(read_table(DATA))[:1])
    assert constants["networks"]["ethernet"] == PRIOR_CONSTANTS["networks"]["ethernet"]


def test_cross_validation_leaves_out_each_system() -> None:
    every = [
        collective
        for collective in group_measured_rows(read_table(DATA))
        if collective.system.name in ("nebius_h100", "runai_h200")
    ]
    progress: list[str] = []
    unseen = cross_validate(every, progress.append)
    assert {system: len(wrong) for system, wrong in unseen.items()} == {"nebius_h100": 10, "runai_h200": 5}
    # The clusters are of the same kind, so constants fitted to either of them predict the other.
    assert all(median(map(abs, wrong)) < 0.05 for wrong in unseen.values())
    assert progress == ["without runai_h200 (1 of 2)", "without nebius_h100 (2 of 2)", ""]
    seen = {
        system: errors_with_constants(rows, parse_constants(PRIOR_CONSTANTS))
        for system, rows in group_by(every).items()
    }
    assert [line.split()[:2] for line in cross_validation_table(seen, unseen).splitlines()[2:]] == [
        ["nebius_h100", "10"],
        ["runai_h200", "5"],
        ["all", "15"],
    ]


def test_cross_validation_leaves_out_each_source() -> None:
    """Files on a shared host count as separate sources."""
    few = [
        collective
        for collective in group_measured_rows(read_table(DATA))
        if collective.system.name in ("nebius_h100", "runai_h200", "oci_h200")
    ]
    unseen = cross_validate(few, by="source")
    assert sorted(map(len, unseen.values())) == [5, 5, 10]
    assert "skypilot-org/skypilot" in unseen
    lines = cross_validation_table(unseen, unseen, "source").splitlines()
    assert lines[1].split()[0] == "source"
    assert len({len(line) for line in lines[1:]}) == 1
