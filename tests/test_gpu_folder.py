"""GPU tests are excluded from `make test`, and `make test-gpu` fails with a list of missing requirements."""

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
    ("arguments", "expected"),
    [
        ([], False),
        (["tests"], False),
        (["tests/trainer", "tests/test_imports.py"], False),
        (["tests/gpu"], True),
        (["tests/infra", "tests/gpu/test_auto.py::test_layout"], True),
    ],
)
def test_gpu_tests_run_only_if_their_folder_is_named(
    arguments: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO)
    assert is_requested(cast(Any, SimpleNamespace(args=arguments))) is expected


def test_missing_requirements_are_named() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=REPO, text=True, capture_output=True)
    assert run.returncode == 1
    assert f"test-gpu: {sys.executable} lacks\n" in run.stderr
    assert "  torch 2.11 to 2.15, built for CUDA\n" in run.stderr
    assert run.stdout == ""
