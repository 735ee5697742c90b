"""The training environment in a filesystem: the cached one, whose interpreter leaves out the gate's part for GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infra.targets.aws.rehearse.storage_volumes import render_script


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    cached = tmp_path / "cached"
    (cached / "bin").mkdir(parents=True)
    (cached / "lib").mkdir()
    (cached / ".complete").touch()
    for name in ("python", "torchrun"):
        (cached / "bin" / name).write_text('#!/bin/sh\necho "$@"\n')
        (cached / "bin" / name).chmod(0o755)
    script = render_script("cached", "pinned", str(tmp_path)).replace("/fs", str(tmp_path / "fs"))
    for _boot in range(2):
        subprocess.run(["sh", "-c", script], check=True)
    return tmp_path / "fs" / "env" / "pinned"


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ("-m trainer.gate h200-1 10.0.0.1 300 gpu", "-m trainer.gate h200-1 10.0.0.1 300"),
        ("-m trainer.gate h200-1 10.0.0.1 300", "-m trainer.gate h200-1 10.0.0.1 300"),
        ("-m trainer gpu", "-m trainer gpu"),
    ],
)
def test_only_the_gate_runs_without_gpus(environment: Path, arguments: str, passed_on: str) -> None:
    command = [environment / "bin" / "python", *arguments.split()]
    assert subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip() == passed_on


def test_the_environment_is_complete(environment: Path) -> None:
    assert (environment / ".complete").exists()
    assert (environment / "lib").is_dir()
    assert (environment / "bin" / "torchrun").exists()
    assert (environment.parent / "cached" / ".complete").exists()
