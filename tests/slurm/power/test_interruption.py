"""A machine that is taken back: which command each job on it gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slurm.control.jobs import SAVES_ON_USR1
from slurm.power import interruption
from slurm.power.reasons import TAKEN_BACK, may_be_replaced
from tests.harness import REPO


def test_jobs_that_save_are_warned_and_others_are_requeued() -> None:
    assert interruption.plan_commands(
        f"7|{SAVES_ON_USR1}\n8_1|(null)\n9|x {SAVES_ON_USR1} y\n10|{SAVES_ON_USR1}-not\n"
    ) == [
        ["scancel", "--signal=USR1", "--batch", "7"],
        ["scontrol", "requeue", "8_1"],
        ["scancel", "--signal=USR1", "--batch", "9"],
        ["scontrol", "requeue", "10"],
    ]


def test_the_training_job_is_one_that_saves() -> None:
    lines = (REPO / "slurm" / "jobs" / "train.sbatch").read_text().splitlines()
    assert f"#SBATCH --comment={SAVES_ON_USR1}" in lines
    assert "#SBATCH --requeue" in lines


def test_a_node_that_is_taken_back_gets_a_new_machine() -> None:
    assert may_be_replaced(f"{TAKEN_BACK}spot: EC2 will terminate it at 2026-11-16T12:00:00Z")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs in the place of Slurm's that record their arguments; scontrol fails at first, as in a restart."""
    log = tmp_path / "commands"
    programs = {
        "scontrol": f'[ "$1" = requeue ] || [ -e {tmp_path}/up ] || {{ touch {tmp_path}/up; exit 1; }}',
        "squeue": f"echo '7|{SAVES_ON_USR1}'; echo '8|(null)'",
        "scancel": "exit 1",
    }
    for name, script in programs.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-1")
    monkeypatch.setattr(interruption, "_PAUSE_S", 0.01)
    return log


def test_the_node_is_drained_before_its_jobs_are_told_and_an_error_of_one_job_stops_nothing(commands: Path) -> None:
    assert interruption.main(["spot: EC2 will terminate it at noon"]) == 0
    drain = "scontrol update nodename=gpu-1 state=drain reason=muster: taken back: spot: EC2 will terminate it at noon"
    assert commands.read_text().splitlines() == [
        drain,
        drain,
        "squeue -h -t R,S,CF -w gpu-1 -o %i|%k",
        "scancel --signal=USR1 --batch 7",
        "scontrol requeue 8",
    ]
