"""What train.sbatch does with warnings, preemption and cancellation."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.slurm.train_job.job_stubs import Run, Start, is_requeued, send_signal


@pytest.mark.parametrize(("seconds_left", "reason"), [(100, "time limit"), (5000, "preempted")])
def test_a_warning_signal_stops_the_run_and_requeues_the_job(
    start: Start, tmp_path: Path, seconds_left: int, reason: str
) -> None:
    end = str(int(time.time()) + seconds_left)
    done = send_signal(start(TICKS="1200", UNTIL="stop", OUTCOME="finished", SLURM_JOB_END_TIME=end), signal.SIGUSR1)
    assert f"train: stopping ({reason})" in done.stdout
    assert f"train: {reason} at step 7; newest checkpoint: none; requeue 1" in done.stdout
    assert done.returncode == 0
    assert is_requeued(tmp_path)


def test_a_short_job_is_not_stopped_by_a_warning_at_its_start(start: Start, tmp_path: Path, run_folder: Path) -> None:
    now = int(time.time())
    # As long as a short job may be: the signal must arrive in its first half, also on a busy machine.
    times = {"SLURM_JOB_START_TIME": str(now - 1), "SLURM_JOB_END_TIME": str(now + 239)}
    process = start(OUTCOME="finished", TICKS="1200", UNTIL="end", **times)
    done = send_signal(process, signal.SIGUSR1, "the ranks stop when it is near", run_folder / "end")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the ranks stop when it is near" in done.stdout
    assert not is_requeued(tmp_path)


def test_a_short_job_that_is_preempted_stops_at_once(start: Start, tmp_path: Path) -> None:
    now = int(time.time())
    times = {"SLURM_JOB_START_TIME": str(now - 1), "SLURM_JOB_END_TIME": str(now + 59)}
    done = send_signal(start(TICKS="1200", UNTIL="stop", PREEMPTED="2026-11-15T09:50:04", **times), signal.SIGUSR1)
    assert "train: stopping (preempted)" in done.stdout
    assert is_requeued(tmp_path)


@pytest.mark.parametrize(("mode", "by_script"), [("REQUEUE", False), ("CANCEL", True)])
def test_a_preempted_job_is_requeued_once(start: Start, tmp_path: Path, mode: str, by_script: bool) -> None:
    end, preempted = str(int(time.time()) + 5000), "2026-11-15T10:37:06"
    process = start(TICKS="1200", UNTIL="stop", PREEMPTED=preempted, PREEMPT_MODE=mode, SLURM_JOB_END_TIME=end)
    done = send_signal(process, signal.SIGUSR1)
    assert done.returncode == 0, done.stderr
    assert "train: preempted at step 7; newest checkpoint: none; requeue 1 of at most 100" in done.stdout
    assert is_requeued(tmp_path) == by_script


def test_a_job_that_is_preempted_again_without_progress_is_requeued(job: Run, tmp_path: Path) -> None:
    for count in ("0", "1", "2"):
        done = job(OUTCOME="requeue", REASON="preempted", CHECKPOINT="00000010", SLURM_RESTART_COUNT=count)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().count("scontrol requeue 12345") == 3


def test_a_preempted_job_that_only_received_sigterm_reports_the_preemption(job: Run) -> None:
    variables = {"OUTCOME": "terminated", "REASON": "terminated by a signal", "PREEMPTED": "2026-11-15T10:17:45"}
    for _ in range(2):
        done = job(**variables, CHECKPOINT="00000010")
        expected = "train: preempted: terminated by a signal at step 7; newest checkpoint: 00000010; requeue 1"
        assert expected in done.stdout


def test_a_preemption_does_not_count_as_lack_of_progress(job: Run) -> None:
    job(OUTCOME="requeue", REASON="preempted", CHECKPOINT="00000010")
    assert job(TORCHRUN="1", SLURM_RESTART_COUNT="1", MAX_STALLED_REQUEUES="1").returncode == 0
    assert job(TORCHRUN="1", SLURM_RESTART_COUNT="2", MAX_STALLED_REQUEUES="1").returncode == 1


def test_a_warning_does_not_replace_a_persons_stop_file(start: Start, run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    (run_folder / "stop").write_text("enough\n")
    send_signal(start(OUTCOME="finished", TICKS="10"), signal.SIGUSR1)
    assert (run_folder / "stop").read_text() == "enough\n"


def test_a_job_that_gets_sigterm_while_it_is_running_is_requeued(start: Start, tmp_path: Path) -> None:
    done = send_signal(start(TICKS="1200", UNTIL="stop"), signal.SIGTERM)
    assert "train: stopping (preempted)" in done.stdout
    assert is_requeued(tmp_path)


def test_a_cancelled_job_is_not_requeued(start: Start, tmp_path: Path) -> None:
    (tmp_path / "states" / "12345").write_text("COMPLETING")
    done = send_signal(start(TICKS="1200", UNTIL="stop"), signal.SIGTERM)
    assert done.returncode == 77
    assert "train: stopping (cancelled)" in done.stdout
    assert "train: Slurm ended the job; not requeued by this script. Newest checkpoint: none" in done.stdout
    assert not is_requeued(tmp_path)


def test_a_job_that_slurm_is_ending_is_not_requeued(job: Run, tmp_path: Path) -> None:
    (tmp_path / "states" / "12345").write_text("COMPLETING")
    done = job(OUTCOME="requeue")
    assert done.returncode == 77
    assert "not requeued: Slurm is already ending the job (COMPLETING)" in done.stdout
    assert not is_requeued(tmp_path)
