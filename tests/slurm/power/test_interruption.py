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
        f"7|RUNNING|0:15|{SAVES_ON_USR1}\n8_1|RUNNING|3:02|(null)\n9|SUSPENDED|1-00:00:03|x {SAVES_ON_USR1} y|z\n"
        f"10|RUNNING|59:59|{SAVES_ON_USR1}-not\n"
    ) == [
        ["scancel", "--signal=USR1", "--batch", "7"],
        ["scontrol", "requeue", "8_1"],
        ["scancel", "--signal=USR1", "--batch", "9"],
        ["scontrol", "requeue", "10"],
    ]


@pytest.mark.parametrize(("state", "elapsed"), [("CONFIGURING", "2:10"), ("RUNNING", "0:00"), ("RUNNING", "0:14")])
def test_a_job_that_no_signal_reaches_yet_is_requeued(state: str, elapsed: str) -> None:
    """Its batch script has not started, or has not installed its handler and would be killed by the signal."""
    assert interruption.plan_commands(f"7|{state}|{elapsed}|{SAVES_ON_USR1}\n") == [["scontrol", "requeue", "7"]]


def test_the_training_job_is_one_that_saves() -> None:
    lines = (REPO / "slurm" / "jobs" / "train.sbatch").read_text().splitlines()
    assert f"#SBATCH --comment={SAVES_ON_USR1}" in lines
    assert "#SBATCH --requeue" in lines


def test_a_node_that_is_taken_back_gets_a_new_machine() -> None:
    assert may_be_replaced(f"{TAKEN_BACK}spot: EC2 will terminate it at 2026-11-16T12:00:00Z")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs in the place of Slurm's that record their arguments; scontrol fails twice, as before slurmd runs."""
    log = tmp_path / "commands"
    programs = {
        "scontrol": f'[ "$1" = requeue ] || [ "$(grep -c "state=drain" {log})" -gt 2 ] || exit 1',
        "squeue": f"echo '7|RUNNING|1:00|{SAVES_ON_USR1}'; echo '8|RUNNING|1:00|(null)'",
        "scancel": "exit 1",
    }
    for name, script in programs.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(interruption, "_PAUSE_S", 0.01)
    return log


def test_the_node_is_drained_before_its_jobs_are_told_and_an_error_of_one_job_stops_nothing(commands: Path) -> None:
    """The node is the one that set-up names: the host name is another until set-up has changed it."""
    assert interruption.main(["gpu-1", "spot: EC2 will terminate it at noon"]) == 0
    drain = "scontrol update nodename=gpu-1 state=drain reason=muster: taken back: spot: EC2 will terminate it at noon"
    assert commands.read_text().splitlines() == [
        *[drain] * 3,
        "squeue -h -t R,S,CF -w gpu-1 -o %i|%T|%M|%k",
        "scancel --signal=USR1 --batch 7",
        "scontrol requeue 8",
    ]


def test_a_program_that_is_not_installed_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    """If the program failed, systemd would start it again and again, and it would wait for the notice again."""
    installed = tmp_path / "scontrol"
    installed.rename(tmp_path / "later")

    def install(_seconds: float) -> None:
        if not installed.exists():
            (tmp_path / "later").rename(installed)

    monkeypatch.setattr(interruption.time, "sleep", install)
    assert interruption.main(["gpu-1", "noon"]) == 0
    assert commands.read_text().splitlines()[-1] == "scontrol requeue 8"
