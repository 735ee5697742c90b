"""Cases that a marker leaves to the night: not collected by day, all collected by night, and none misspelled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run import REPO

Collect = Callable[..., tuple[int, str]]

TEST = """import pytest

@pytest.mark.nightly_cases({ids})
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["a", "b"])
def test_kinds(kind, size):
    pass
"""
CASES = ["a-1", "a-2", "b-1", "b-2"]


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Return a function that collects a test with these nightly cases; it returns the exit code and the output."""

    def run(ids: str, *options: str, case: str = "") -> tuple[int, str]:
        file = tmp_path / "test_kinds.py"
        file.write_text(TEST.format(ids=ids))
        command = [sys.executable, "-m", "pytest", "-c", str(REPO / "pyproject.toml"), "--rootdir", str(tmp_path)]
        command += ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", *options, f"{file}{case}"]
        done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def list_cases(output: str) -> list[str]:
    return [line.partition("[")[2].removesuffix("]") for line in output.splitlines() if "::test_kinds[" in line]


def test_only_the_night_runs_the_cases_that_the_marker_names(collect: Collect) -> None:
    code, by_day = collect("'a-2', 'b-1'", "-m", "not nightly")
    assert (code, list_cases(by_day)) == (0, ["a-1", "b-2"])
    code, by_night = collect("'a-2', 'b-1'")
    assert (code, list_cases(by_night)) == (0, CASES)


def test_a_case_that_does_not_exist_is_refused_unless_only_some_were_collected(collect: Collect) -> None:
    code, output = collect("'a-2', 'c-1'", "-m", "not nightly")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "nightly_cases: no such case: test_kinds.py::test_kinds[c-1]" in output
    code, output = collect("'a-2', 'c-1'", case="::test_kinds[b-2]")
    assert (code, list_cases(output)) == (0, ["b-2"])
