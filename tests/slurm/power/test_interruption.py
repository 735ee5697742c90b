"""A machine that is taken back: which command each job on it gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from slurm.control.jobs import SAVES_ON_USR1, NodeJob
from slurm.power import interruption
from slurm.power.reasons import TAKEN_BACK, may_be_replaced
from tests.harness import REPO


@pytest.mark.parametrize(
    ("job", "comment", "command"),
    [
        (NodeJob("7", "RUNNING", "0:15"), f"{SAVES_ON_USR1}\n", "scancel --signal=USR1 --batch 7"),
        (NodeJob("8_1", "RUNNING", "3:02"), "(null)\n", "scontrol requeue 8_1"),
        (NodeJob("9", "SUSPENDED", "1-00:00:03"), f"x {SAVES_ON_USR1} y|z\n", "scancel --signal=USR1 --batch 9"),
        (NodeJob("10", "RUNNING", "59:59"), f"{SAVES_ON_USR1}-not\n", "scontrol requeue 10"),
        (NodeJob("11", "RUNNING", "59:59"), "\n", "scontrol requeue 11"),
        (NodeJob("12", "RUNNING", "59:59"), None, "scontrol requeue 12"),
        (NodeJob("13", "RUNNING", "59:59"), "", ""),
    ],
)
def test_jobs_that_save_are_warned_and_others_are_requeued(job: NodeJob, comment: str | None, command: str) -> None:
    assert " ".join(interruption.choose_command(job, comment)) == command


@pytest.mark.parametrize(("state", "elapsed"), [("CONFIGURING", "2:10"), ("RUNNING", "0:00"), ("RUNNING", "0:14")])
def test_a_job_that_no_signal_reaches_yet_is_requeued(state: str, elapsed: str) -> None:
    """Its batch script has not started, or has not installed its handler and would be killed by the signal."""
    job = NodeJob("7", state, elapsed)
    assert interruption.choose_command(job, f"{SAVES_ON_USR1}\n") == ["scontrol", "requeue", "7"]


def test_the_training_job_is_one_that_saves() -> None:
    lines = (REPO / "slurm" / "jobs" / "train.sbatch").read_text().splitlines()
    assert f"#SBATCH --comment={SAVES_ON_USR1}" in lines
    assert "#SBATCH --requeue" in lines


def test_a_node_that_is_taken_back_gets_a_new_machine() -> None:
    assert may_be_replaced(f"{TAKEN_BACK}spot: EC2 will terminate it at 2026-11-16T12:00:00Z")


COMMENTS = {
    "7": SAVES_ON_USR1,
    "8": f"x\n77|RUNNING|9:00|{SAVES_ON_USR1}-not\n78|RUNNING|9:00",
    "9": "no separator,\nand two lines",
}
# As the real one, it prints comments as they are, with their line breaks.
SQUEUE = """for format; do :; done
while [ "$1" != -j ] && [ "$1" != -w ]; do shift; done
[ "$1" = -w ] && jobs="7 8 9" || jobs=$2
for job in $jobs; do
  comment=$(cat "${0%/*}/comment-$job")
  case $format in
  "%k") echo "$comment" ;;
  "%i|%T|%M") echo "$job|RUNNING|1:00" ;;
  "%i|%T|%M|%k") echo "$job|RUNNING|1:00|$comment" ;;
  *) exit 1 ;;
  esac
done"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs in the place of Slurm's that record their arguments; scontrol fails twice, as before slurmd runs."""
    log = tmp_path / "commands"
    for job, comment in COMMENTS.items():
        (tmp_path / f"comment-{job}").write_text(f"{comment}\n")
    programs = {
        "scontrol": f'[ "$1" = requeue ] || [ "$(grep -c "state=drain" {log})" -gt 2 ] || exit 1',
        "squeue": SQUEUE,
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
        "squeue -h -t R,S,CF -w gpu-1 -o %i|%T|%M",
        "squeue -h -t R,S,CF -j 7 -o %k",
        "scancel --signal=USR1 --batch 7",
        "squeue -h -t R,S,CF -j 8 -o %k",
        "scontrol requeue 8",
        "squeue -h -t R,S,CF -j 9 -o %k",
        "scontrol requeue 9",
    ]


def test_a_users_comment_neither_names_other_jobs_nor_hides_any(commands: Path) -> None:
    interruption.main(["gpu-1", "noon"])
    notices = [line for line in commands.read_text().splitlines() if line.startswith(("scancel", "scontrol requeue"))]
    assert notices == ["scancel --signal=USR1 --batch 7", "scontrol requeue 8", "scontrol requeue 9"]


def test_a_command_that_hangs_does_not_stop_the_notice_for_later_jobs(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_JOB_TIMEOUT_S", 0.5)
    scancel = commands.parent / "scancel"
    scancel.write_text(scancel.read_text().replace("exit 1", "exec sleep 60"))
    assert interruption.main(["gpu-1", "noon"]) == 0
    assert "scancel --signal=USR1 --batch 7" in commands.read_text()
    assert commands.read_text().splitlines()[-1] == "scontrol requeue 9"


def test_a_job_whose_comment_cannot_be_read_in_time_is_requeued(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_JOB_TIMEOUT_S", 0.5)
    squeue = commands.parent / "squeue"
    squeue.write_text(squeue.read_text().replace('"%k") ', '"%k") [ $job != 7 ] || exec sleep 60; '))
    assert interruption.main(["gpu-1", "noon"]) == 0
    requeued = [line for line in commands.read_text().splitlines() if line.startswith("scontrol requeue")]
    assert requeued == [f"scontrol requeue {job}" for job in (7, 8, 9)]


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
    assert commands.read_text().splitlines()[-1] == "scontrol requeue 9"
