"""The GPU's tests stay out of `make test`, and say what a machine lacks instead of passing without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.gpu.conftest import is_requested

REPO = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        (["tests"], False),
        (["tests/trainer", "tests/test_imports.py"], False),
        (["tests/gpu"], True),
        (["tests/infra", "tests/gpu/test_auto.py::test_what_is_chosen_fits_into_what_is_left"], True),
    ],
)
def test_only_who_names_the_folder_gets_its_tests(
    words: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO)
    assert is_requested(cast(Any, SimpleNamespace(args=words))) is expected


def test_what_is_missing_is_named_and_fails() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=REPO, text=True, capture_output=True)
    assert run.returncode == 1
    assert f"test-gpu: {sys.executable} lacks\n" in run.stderr
    assert "  torch 2.11 to 2.15, built for CUDA\n" in run.stderr
    assert run.stdout == ""
