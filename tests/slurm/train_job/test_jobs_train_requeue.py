"""Which ends of a step make train.sbatch requeue itself, how often, and without which nodes."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from tests.slurm.train_job.job_stubs import Run, is_requeued


def test_a_finished_run_is_not_requeued_even_if_torchrun_fails(job: Run, tmp_path: Path) -> None:
    done = job(OUTCOME="finished", TORCHRUN="1")
    assert done.returncode == 0
    assert "train: finished: a reason, with a comma at step 7" in done.stdout
    assert not is_requeued(tmp_path)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("outcome", "status", "message"),
    [
        ("stopped", 77, "train: stopped: a reason, with a comma at step 7. Continue with RUN_FOLDER="),
        ("broken", 1, "train: BROKEN: a reason, with a comma at step 7"),
        ("bad_input", 2, "train: FAILED at step 7: a reason, with a comma"),
    ],
)
def test_outcomes_that_are_not_requeued(job: Run, tmp_path: Path, outcome: str, status: int, message: str) -> None:
    done = job(OUTCOME=outcome)
    assert done.returncode == status
    assert message in done.stdout + done.stderr
    assert not is_requeued(tmp_path)


def test_a_refused_start_gives_the_outcome_of_the_run_back(job: Run, run_folder: Path) -> None:
    job(OUTCOME="finished")
    before = (run_folder / "outcome.json").read_text()
    assert job(OUTCOME="bad_input").returncode == 2
    assert (run_folder / "outcome.json").read_text() == before
    assert not (run_folder / ".outcome-before.json").exists()


def test_a_start_that_ends_before_the_run_gives_its_outcome_back(job: Run, run_folder: Path) -> None:
    job(OUTCOME="finished")
    before = (run_folder / "outcome.json").read_text()
    job(TORCHRUN="1")  # ends without an outcome
    assert (run_folder / "outcome.json").read_text() == before


def test_only_a_run_that_had_ended_gets_its_outcome_back(job: Run, run_folder: Path) -> None:
    """A requeued job that is refused does not continue, whatever its last attempt said."""
    job(OUTCOME="requeue", REASON="time limit")
    assert job(OUTCOME="bad_input").returncode == 2
    assert json.loads((run_folder / "outcome.json").read_text())["outcome"] == "bad_input"


def test_a_requeue_is_reported_with_its_reason(job: Run, tmp_path: Path, run_folder: Path) -> None:
    done = job(OUTCOME="requeue", REASON="time limit", CHECKPOINT="00000007")
    assert done.returncode == 0, done.stderr
    assert "train: time limit at step 7; newest checkpoint: 00000007; requeue 1 of at most 100" in done.stdout
    assert is_requeued(tmp_path)
    assert "12345 step=00000007 requeue=1 " in (run_folder / "requeues").read_text()


def test_a_run_that_only_received_sigterm_is_requeued(job: Run, tmp_path: Path) -> None:
    assert job(OUTCOME="terminated", TORCHRUN="1").returncode == 0
    assert is_requeued(tmp_path)


def test_a_run_that_failed_is_requeued_with_the_first_cause(job: Run, tmp_path: Path) -> None:
    done = job(OUTCOME="failed", TORCHRUN="1", REASON="rank 3 on gpu-2: device: CUDA error")
    assert done.returncode == 0
    assert "train: rank 3 on gpu-2: device: CUDA error at step 7; newest checkpoint: none" in done.stdout
    assert is_requeued(tmp_path)


def test_a_lost_node_is_named_and_the_job_is_requeued(job: Run, tmp_path: Path) -> None:
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", DOWN="gpu-2 down*")
    assert done.returncode == 0
    assert "train: gpu-2 did not join: it never reached gpu-1 at 10.88.0.3\n" in done.stdout
    assert "gpu-1 did not join" not in done.stdout
    assert "train: gpu-2 is down*" in done.stdout
    assert (
        "train: the step ended with 1 and no outcome: a rank or a node was lost; newest checkpoint: none" in done.stdout
    )
    assert is_requeued(tmp_path)


def test_no_process_waits_for_a_lost_node_after_the_job(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CUT_OFF="gpu-2")
    deadline = time.monotonic() + 120
    while left := list_processes(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def list_processes(tmp_path: Path) -> list[str]:
    """Return the processes that have the test's own folder in their environment."""
    mark, commands = f"CALLS={tmp_path}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                commands.append((environment.parent / "cmdline").read_text())
    return commands


@pytest.mark.fault(14)
def test_requeues_without_progress_stop_after_three(job: Run, tmp_path: Path) -> None:
    """The first requeue is at a new checkpoint, such as that of the time limit; then three attempts are lost."""
    for count in range(3):
        assert job(TORCHRUN="1", CHECKPOINT="00000010", SLURM_RESTART_COUNT=str(count)).returncode == 0
    (tmp_path / "calls").unlink()
    done = job(TORCHRUN="1", SLURM_RESTART_COUNT="3")
    assert done.returncode == 1
    expected = "not requeued: no newer checkpoint than 00000010 in 3 requeues (MAX_STALLED_REQUEUES=3)"
    assert expected in done.stderr
    assert not is_requeued(tmp_path)


def test_a_newer_checkpoint_renews_the_requeues_without_progress(job: Run) -> None:
    for count, step in enumerate(("00000010", "00000010", "00000020", "00000020")):
        variables = {"SLURM_RESTART_COUNT": str(count), "MAX_STALLED_REQUEUES": "2"}
        assert job(TORCHRUN="1", CHECKPOINT=step, **variables).returncode == 0
    done = job(TORCHRUN="1", SLURM_RESTART_COUNT="4", MAX_STALLED_REQUEUES="2")
    assert "no newer checkpoint than 00000020 in 2 requeues (MAX_STALLED_REQUEUES=2)" in done.stderr


ENOUGH_NODES = "gpu-1 idle\ngpu-2 alloc\ngpu-3 idle~\ngpu-3 idle~\ngpu-4 down*"


def test_a_lost_node_is_excluded_from_the_next_attempt_only(job: Run, tmp_path: Path) -> None:
    """Slurm may still consider a node that did not join healthy, and would use it again."""
    excluded = tmp_path / "states" / "excluded"
    excluded.write_text("gpu-9")
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", PARTITION=ENOUGH_NODES)
    assert "train: the next attempt excludes gpu-9,gpu-2" in done.stdout
    assert excluded.read_text() == "gpu-9,gpu-2\n"
    calls = (tmp_path / "calls").read_text()
    assert calls.index("scontrol requeue") < calls.index("scontrol update JobId=12345 ExcNodeList=gpu-9,gpu-2")
    job(OUTCOME="requeue", SLURM_RESTART_COUNT="1", PARTITION=ENOUGH_NODES)
    assert excluded.read_text() == "gpu-9\n"


@pytest.mark.parametrize(("cause", "expected"), [("device", "gpu-2\n"), ("storage", "")])
def test_a_node_whose_gpu_failed_is_excluded_too(job: Run, tmp_path: Path, cause: str, expected: str) -> None:
    failure = json.dumps(
        {"cause": cause, "rank": 3, "host": "gpu-2", "error": "AcceleratorError", "place": "", "fix": ""}
    )
    done = job(OUTCOME="failed", TORCHRUN="1", FAILURE=f', "failure": {failure}', PARTITION=ENOUGH_NODES)
    assert done.returncode == 0
    excluded = tmp_path / "states" / "excluded"
    assert (excluded.read_text() if excluded.exists() else "") == expected
    assert ("train: a GPU of gpu-2 failed" in done.stdout) == (cause == "device")


@pytest.mark.parametrize(("host", "expected"), [("gpu-2", "gpu-2\n"), ("gpu-7", "")], ids=["own", "other"])
def test_a_node_that_computed_wrong_results_is_excluded(job: Run, tmp_path: Path, host: str, expected: str) -> None:
    """The trainer ends the run for a requeue, with the host that its replays blame (health.replay_every)."""
    failure = json.dumps(
        {"cause": "corruption", "rank": 3, "host": host, "error": "wrong gradients", "place": "", "fix": ""}
    )
    done = job(OUTCOME="requeue", FAILURE=f', "failure": {failure}', PARTITION=ENOUGH_NODES)
    assert done.returncode == 0
    assert "scontrol requeue" in (tmp_path / "calls").read_text()
    excluded = tmp_path / "states" / "excluded"
    assert (excluded.read_text() if excluded.exists() else "") == expected
    assert ("train: gpu-2 computed wrong results" in done.stdout) == bool(expected)


def test_a_lost_node_is_not_excluded_if_the_job_could_not_start_without_it(job: Run, tmp_path: Path) -> None:
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", PARTITION="gpu-1 idle\ngpu-2 idle\ngpu-3 drain")
    assert done.returncode == 0
    assert "train: the partition has too few other nodes in service to exclude gpu-2" in done.stdout
    assert not (tmp_path / "states" / "excluded").read_text().strip()


def test_requeues_continue_up_to_the_limit_while_there_is_progress(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CHECKPOINT="00000010")
    assert job(TORCHRUN="1", CHECKPOINT="00000020", SLURM_RESTART_COUNT="1").returncode == 0
    (tmp_path / "calls").unlink()
    done = job(TORCHRUN="1", CHECKPOINT="00000030", SLURM_RESTART_COUNT="2", MAX_REQUEUES="2")
    assert done.returncode == 1
    assert "not requeued: already requeued 2 times (MAX_REQUEUES=2)" in done.stderr
    assert not is_requeued(tmp_path)


def test_the_requeues_of_another_job_in_the_same_folder_do_not_count(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CHECKPOINT="00000010", RUN_FOLDER="again")
    (tmp_path / "states" / "12345").write_text("FAILED")
    assert job(TORCHRUN="1", RUN_FOLDER="again", SLURM_JOB_ID="777").returncode == 0
    assert "scontrol requeue 777" in (tmp_path / "calls").read_text()


def test_a_requeue_that_slurm_rejects_is_reported(job: Run) -> None:
    done = job(OUTCOME="requeue", REQUEUE_FAILS="1")
    assert done.returncode == 1
    assert "train: BROKEN: scontrol requeue failed; continue with RUN_FOLDER=" in done.stderr
