"""docs/faults.md: it is current, every test that it names exists, and it claims nothing without a test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fault_matrix import times
from tests.fault_matrix.marked_tests import REPO, MarkedTest, list_marked_tests
from tests.fault_matrix.page import NOT_MEASURED, PAGE, judge_row, render_page
from tests.fault_matrix.rows import ROWS
from tests.fault_matrix.times import FILE, Times, read_times

TESTS = list_marked_tests()


def test_the_page_is_current() -> None:
    assert (REPO / PAGE).read_text() == render_page(TESTS, read_times()), "run `make golden` and review the difference"


def test_the_matrix_has_38_rows() -> None:
    assert list(ROWS) == list(range(1, 39))


def test_marked_tests_name_rows_that_exist() -> None:
    assert [test.id for test in TESTS if not set(test.rows) <= set(ROWS)] == []


@pytest.mark.parametrize("number", ROWS)
def test_a_row_says_what_happens_only_if_a_test_shows_it(number: int) -> None:
    row = ROWS[number]
    if judge_row(number, TESTS) == "not yet":
        assert (row.happens, row.lost) == ("", "")
        assert row.missing
    else:
        assert row.happens
        assert row.lost


def test_times_come_from_tests_that_are_marked_with_the_row() -> None:
    marked = {(test.id, row) for test in TESTS for row in test.rows}
    assert [entry for entry in read_times() if (entry.test, entry.row) not in marked] == []


def test_rows_without_times_have_none() -> None:
    assert [entry for entry in read_times() if ROWS[entry.row].untimed] == []


def test_cases_are_named_only_where_a_test_compares_them_with_the_parameters() -> None:
    """Parameters are not in the source of a test; test_scenarios.py has a test that the named ones exist."""
    assert {test.path for test in TESTS if test.case} == {
        "tests/infra/targets/aws/rehearse/test_rehearsed_scenarios.py"
    }


def test_markers_are_read_from_sources(tmp_path: Path) -> None:
    (tmp_path / "tests" / "trainer").mkdir(parents=True)
    (tmp_path / "tests" / "test_a.py").write_text(
        """
@pytest.mark.fault(3, 4)
@pytest.mark.nightly
def test_x(): ...

@pytest.mark.fault(5, case="slow", place="simulated AWS")
def test_y(): ...

def test_z(): ...
"""
    )
    night = "pytestmark = [pytest.mark.slow, pytest.mark.nightly]\n"
    (tmp_path / "tests" / "trainer" / "test_b.py").write_text(f"{night}@pytest.mark.fault(6)\ndef test_w(): ...\n")
    assert list_marked_tests(tmp_path) == [
        MarkedTest("tests/test_a.py", "test_x", (3, 4), "unit", nightly=True),
        MarkedTest("tests/test_a.py", "test_y", (5,), "simulated AWS", nightly=False, case="slow"),
        MarkedTest("tests/trainer/test_b.py", "test_w", (6,), "real processes", nightly=True),
    ]
    _, cased, boxed = list_marked_tests(tmp_path)
    assert cased.command == ".venv/bin/python -m pytest 'tests/test_a.py::test_y[slow]'"
    assert boxed.command == ".venv/bin/python -m tests.trainer_box tests/trainer/test_b.py::test_w"


@pytest.mark.parametrize("marker", ["fault()", "fault('1')", "fault(1, where='here')", "fault(1, place='moon')"])
def test_a_wrong_marker_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(f"@pytest.mark.{marker}\ndef test_x(): ...\n")
    with pytest.raises(ValueError, match=r"tests/test_a.py::test_x: `pytest.mark.fault\(.* is not fault\(row"):
        list_marked_tests(tmp_path)


def test_a_row_counts_only_with_a_test_in_the_right_place(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = MarkedTest("tests/test_a.py", "test_x", (2,), "unit", nightly=False)
    real = MarkedTest("tests/e2e/test_a.py", "test_x", (2, 6), "local cluster", nightly=False)
    assert judge_row(2, []) == "not yet"
    assert judge_row(2, [unit]) == "in part"
    assert judge_row(2, [unit, real]) == "yes"
    monkeypatch.setitem(ROWS, 6, replace(ROWS[6], missing="something"))
    assert judge_row(6, [real]) == "in part"


def test_times_are_stored_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, test = tmp_path / "times.json", "tests/test_a.py::test_x"
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test}[a b] (call)")
    monkeypatch.delenv(times.VARIABLE, raising=False)
    times.record(5, detect_s=1.0, file=file)
    assert not file.exists()
    monkeypatch.setenv(times.VARIABLE, "1")
    times.record(5, detect_s=1.0, file=file)
    times.record(3, recover_s=2.04, file=file)
    times.record(5, detect_s=7.26, recover_s=8.0, file=file)
    first, second = read_times(file)
    assert first == Times(3, test, None, 2.0, first.date)
    assert second == Times(5, test, 7.3, 8.0, second.date)


def test_a_time_that_nobody_measured_is_not_made_up() -> None:
    test = MarkedTest("tests/e2e/test_a.py", "test_x", (2,), "local cluster", nightly=True)
    lines = render_page([test], [Times(2, test.id, 4.5, None, "2026-11-18")]).splitlines()
    (line,) = [line for line in lines if line.startswith("| [2]")]
    assert (
        line == f"| [2](#row-2) | {ROWS[2].fault} | yes | local cluster | nightly | 4.5 s | {NOT_MEASURED} | nothing |"
    )
    assert f"Recorded on 2026-11-18 by `{test.name}`: detected after 4.5 s." in lines


def test_a_row_without_times_says_why() -> None:
    lines = render_page(TESTS, []).splitlines()
    for number, row in ROWS.items():
        (line,) = [line for line in lines if line.startswith(f"| [{number}]")]
        assert ("| - | - |" in line) is bool(row.untimed)
        assert (f"**No times:** {row.untimed}." in lines) is bool(row.untimed)


def test_the_recorded_times_are_a_list() -> None:
    assert isinstance(json.loads(FILE.read_text()), list)
