"""docs/faults.md and SECURITY.md: every command that repeats a test finds it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly_parts import VARIABLE

REPO = Path(__file__).parents[1]
PAGES = ("docs/faults.md", "SECURITY.md")
COMMAND = re.compile(r"`\.venv/bin/python -m (pytest|tests\.trainer_box) ([^`]+)`")


def list_tests(program: str) -> list[str]:
    """Return the files and tests that the commands of this program name."""
    commands = [match for page in PAGES for match in COMMAND.findall((REPO / page).read_text())]
    return sorted({test for name, arguments in commands if name == program for test in shlex.split(arguments)})


def test_tests_of_the_trainer_are_run_in_its_container() -> None:
    in_container = list_tests("tests.trainer_box")
    assert in_container
    assert [test for test in in_container if not test.startswith("tests/trainer/")] == []
    assert [test for test in list_tests("pytest") if test.startswith("tests/trainer/")] == []


@pytest.mark.nightly
def test_every_command_finds_its_tests() -> None:
    """pytest fails if it does not find one. The trainer's tests need torch, which is not installed here."""
    tests = list_tests("pytest")
    assert len(tests) > 100
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    everything = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(command, cwd=REPO, env=everything, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
