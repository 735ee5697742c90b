"""Measured collectives: the bounds that the model keeps on them, in the fit and left out of it."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from statistics import median

import pytest

from simulator.collectives.constants import constants
from simulator.fit.collective_cross_validation import errors_of, grouped, left_out, measured, table
from simulator.fit.collective_errors import errors_by_system
from simulator.fit.collectives import BELIEVED, fit, loss
from simulator.rows.tables import read_table

DATA = Path(__file__).parents[2] / "simulator" / "data" / "collectives.csv"
LATER = DATA.with_name("new_collectives.csv")
"""Collected after the model stood."""
HELD_OUT = DATA.with_name("collectives_held_out.csv")
"""Collected last; no constant was ever fitted to it."""


def test_bounds_on_all_that_was_measured() -> None:
    errors = errors_by_system(read_table(DATA))["all"]
    assert errors.median <= 0.06
    assert errors.p90 <= 0.25
    assert abs(errors.bias) <= 0.08
    assert errors.answered == errors.rows - 15, "only the system that nobody described has no answer"


def test_every_row_names_its_source() -> None:
    rows = read_table(DATA) + read_table(LATER) + read_table(HELD_OUT)
    assert all(row["source"] and row["source_ref"] and row["coll_id"] for row in rows)
    assert len({row["coll_id"] for row in rows}) == len(rows)


# A system that others stand beside: its network or its links were measured elsewhere too.
@pytest.mark.parametrize(
    ("system", "most"), [("gcp_a4", 0.10), ("runai_h200", 0.10), ("h100_node_ib", 0.10), ("a100_node_thanos", 0.15)]
)
def test_a_system_that_took_no_part_in_the_fit(system: str, most: float) -> None:
    every = measured(read_table(DATA))
    others = [one for one in every if one.system.name != system]
    found = fit(others)
    assert loss(others, constants(found)) < loss(others, constants(BELIEVED))
    wrong = sorted(abs(error) for error in errors_of(grouped(every)[system], constants(found)))
    assert median(wrong) <= most
    assert wrong[ceil(0.9 * len(wrong)) - 1] <= 0.4


def test_systems_that_were_collected_later() -> None:
    """Fitted to the first table alone, asked for the systems of the second."""
    known = constants(fit(measured(read_table(DATA))))
    unseen = {system: errors_of(rows, known) for system, rows in grouped(measured(read_table(LATER))).items()}
    assert len(unseen) >= 30
    assert median(abs(error) for wrong in unseen.values() for error in wrong) <= 0.08
    assert median(median(map(abs, wrong)) for wrong in unseen.values()) <= 0.10


def test_no_point_that_is_held_out_is_in_a_fit_by_another_name() -> None:
    def points(*files: Path) -> set[tuple[str, ...]]:
        names = ("gpu_type", "gpus", "op", "bytes", "time_us")
        return {tuple(row[name] for name in names) for file in files for row in read_table(file)}

    assert not points(HELD_OUT) & points(DATA, LATER)


def test_systems_that_no_constant_was_fitted_to() -> None:
    errors = errors_by_system(read_table(HELD_OUT))
    assert errors["all"].answered == errors["all"].rows >= 130
    assert errors["all"].median <= 0.10
    assert median(one.median for name, one in errors.items() if name != "all") <= 0.12
    assert abs(errors["all"].bias) <= 0.08


def test_what_nothing_was_measured_of_stays_as_believed() -> None:
    found = fit(measured(read_table(DATA))[:1])
    assert found["networks"]["ethernet"] == BELIEVED["networks"]["ethernet"]


def test_systems_are_left_out_one_after_the_other() -> None:
    every = [one for one in measured(read_table(DATA)) if one.system.name in ("nebius_h100", "runai_h200")]
    told: list[str] = []
    unseen = left_out(every, told.append)
    assert {system: len(wrong) for system, wrong in unseen.items()} == {"nebius_h100": 10, "runai_h200": 5}
    # Two clusters of the same kind: each is told by the other.
    assert all(median(map(abs, wrong)) < 0.05 for wrong in unseen.values())
    assert told == ["without runai_h200 (1 of 2)", "without nebius_h100 (2 of 2)", ""]
    seen = {system: errors_of(rows, constants(BELIEVED)) for system, rows in grouped(every).items()}
    assert [line.split()[:2] for line in table(seen, unseen).splitlines()[2:]] == [
        ["nebius_h100", "10"],
        ["runai_h200", "5"],
        ["all", "15"],
    ]


def test_sources_are_left_out_one_after_the_other() -> None:
    """A host of many is no source: there, each file is one."""
    few = [one for one in measured(read_table(DATA)) if one.system.name in ("nebius_h100", "runai_h200", "oci_h200")]
    unseen = left_out(few, by="source")
    assert sorted(map(len, unseen.values())) == [5, 5, 10]
    assert "skypilot-org/skypilot" in unseen
    lines = table(unseen, unseen, "source").splitlines()
    assert lines[1].split()[0] == "source"
    assert len({len(line) for line in lines[1:]}) == 1
