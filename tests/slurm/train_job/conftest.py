"""Fixtures that run train.sbatch in a folder of the test."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.slurm.train_job.job_stubs import Run, Start, finish, start_job, write_stubs


@pytest.fixture
def start(tmp_path: Path) -> Start:
    write_stubs(tmp_path)
    return partial(start_job, tmp_path)


@pytest.fixture
def job(start: Start) -> Run:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return finish(start(*arguments, **env))

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train-12345"
