"""What a pod of a training job on Kubernetes decides: from its variables, its folder, and how the run ended."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest

from tests.trainer.launch import (
    outcome,
)
from tests.trainer.pod_parts import make_node, make_variables
from trainer import pod
from trainer.checkpoint.run_lock import RunLock
from trainer.life.outcome import Code
from trainer.life.stop import StopReason
from trainer.loop.end import End
from trainer.pod import Node, PodError


def write_outcome(folder: Path, name: str, reason: str = "why") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcome.json").write_text(json.dumps({"outcome": name, "reason": reason, "step": 3, "time": 0.0}))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "JOB_COMPLETION_INDEX is not set, or empty; `muster kubernetes render` sets it"),
        ({"JOB_COMPLETION_INDEX": "a"}, "a variable is not a number: invalid literal for int() with base 10: 'a'"),
    ],
)
def test_missing_variables_are_named(
    variables: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert pod.main(["tiny-llama"], variables) == Code.BAD_INPUT
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == f"pod: FAILED: {message}\n"


@pytest.mark.parametrize("name", ["MUSTER_JOB", "MUSTER_ATTEMPT"])
def test_a_missing_label_is_refused(tmp_path: Path, name: str) -> None:
    """An empty id would equal that of a folder without a job."""
    variables = {**make_variables(tmp_path, 29_400, 0), name: ""}
    with pytest.raises(PodError, match=f"{name} is not set, or empty") as error:
        Node.read(variables)
    assert error.value.code is Code.BAD_INPUT


def test_an_error_of_the_storage_starts_the_pods_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error", "/runs/llama/job")

    monkeypatch.setattr(pod, "run_node", fail)
    monkeypatch.setattr(pod.Node, "read", lambda _: make_node(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert pod.main(["tiny-llama"], {}) == Code.REQUEUE
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Input/output error: '/runs/llama/job'; the pods start again" in capsys.readouterr().err


def test_rdma_needs_unlimited_locked_memory() -> None:
    pod.check_locked_memory({"NCCL_NET": "Socket"}, 65_536)
    pod.check_locked_memory({"NCCL_NET": "IB"}, resource.RLIM_INFINITY)
    with pytest.raises(PodError, match="limited to 65536 bytes, but IB needs it unlimited; set LimitMEMLOCK=infinity"):
        pod.check_locked_memory({"NCCL_NET": "IB"}, 65_536)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("finished", 0),
        ("broken", 1),
        ("bad_input", 2),
        ("stopped", 77),
        *((name, 75) for name in ("requeue", "terminated", "failed")),
    ],
)
def test_exit_code_follows_the_outcome(tmp_path: Path, name: str, code: int) -> None:
    write_outcome(tmp_path, name)
    assert pod.conclude(make_node(tmp_path)) == code


def test_without_an_outcome_the_pods_start_again(tmp_path: Path) -> None:
    assert pod.conclude(make_node(tmp_path)) == Code.REQUEUE


@pytest.mark.parametrize(
    "reason",
    [
        End.after_stop(StopReason.WARNED, "", can_resume=False).reason,
        # The first rank read the stop file after the ranks had agreed on the signal.
        End.after_stop(StopReason.WARNED, StopReason.PREEMPTED.text, can_resume=False).reason,
    ],
)
def test_an_evicted_run_without_checkpoints_starts_again(
    tmp_path: Path, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node(tmp_path)
    pod.prepare_folder(node)
    write_outcome(tmp_path, "stopped", reason)
    assert pod.conclude(node) == Code.REQUEUE
    assert "not requeued" not in capsys.readouterr().out
    assert pod.find_final_code(node) is None
    pod.prepare_folder(node)
    assert not (tmp_path / ".outcome-before.json").exists()


def test_a_persons_stop_that_mentions_a_preemption_ends_the_job(tmp_path: Path) -> None:
    write_outcome(tmp_path, "stopped", "preempted twice, and the loss is flat")
    assert pod.conclude(make_node(tmp_path)) == Code.STOPPED


def test_a_head_that_is_killed_early_does_not_end_the_new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_outcome(tmp_path, "stopped")

    def die(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pod, "_set_outcome_aside", die)
    with pytest.raises(KeyboardInterrupt):
        pod.prepare_folder(make_node(tmp_path, job="job-2"))
    assert pod.find_final_code(make_node(tmp_path, job="job-2")) is None


def test_a_pod_that_starts_while_the_head_prepares_does_not_see_the_old_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_outcome(tmp_path, "stopped")
    read = pod._read_text

    def prepare_and_read(path: Path) -> str:
        if path.name == "job":
            monkeypatch.setattr(pod, "_read_text", read)
            pod.prepare_folder(make_node(tmp_path, job="job-2"))
        return read(path)

    monkeypatch.setattr(pod, "_read_text", prepare_and_read)
    assert pod.find_final_code(make_node(tmp_path, index=1, job="job-2")) is None


def test_a_second_refused_start_shows_its_own_reason(tmp_path: Path) -> None:
    for number in (1, 2):
        node = make_node(tmp_path, job=f"job-{number}")
        pod.prepare_folder(node)
        write_outcome(tmp_path, "bad_input", f"reason {number}")
        assert pod.conclude(node) == Code.BAD_INPUT
    assert outcome(tmp_path)["reason"] == "reason 2"


def test_a_refused_start_gives_the_outcome_from_before_back(tmp_path: Path) -> None:
    write_outcome(tmp_path, "finished")
    node = make_node(tmp_path, job="job-2")
    assert pod.find_final_code(node) is None
    pod.prepare_folder(node)
    assert not (tmp_path / "outcome.json").exists()
    write_outcome(tmp_path, "bad_input")
    assert pod.conclude(node) == Code.BAD_INPUT
    assert outcome(tmp_path)["outcome"] == "finished"


def test_a_job_without_progress_is_broken_but_preemptions_do_not_count(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    pod.prepare_folder(node)
    for _ in range(5):
        write_outcome(tmp_path, "requeue", "preempted at step 3")
        pod.prepare_folder(node)
    for _ in range(pod.MAX_STALLED_RESTARTS):
        write_outcome(tmp_path, "failed", "rank 1 was lost")
        pod.prepare_folder(node)
    write_outcome(tmp_path, "failed", "rank 1 was lost")
    with pytest.raises(
        PodError, match="rank 1 was lost; not started again: no newer checkpoint than none in 3"
    ) as error:
        pod.prepare_folder(node)
    assert error.value.code is Code.BROKEN
    # Another job in the same folder starts from zero.
    pod.prepare_folder(make_node(tmp_path, job="job-2"))


def test_pods_that_are_evicted_or_never_meet_do_not_count_as_lack_of_progress(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    (tmp_path / "checkpoints" / "step-00000020").mkdir(parents=True)
    pod.prepare_folder(node)
    for _ in range(pod.MAX_STALLED_RESTARTS + 1):  # torchrun waits for pods in vain
        pod.prepare_folder(node)
    for _ in range(pod.MAX_STALLED_RESTARTS + 1):  # evicted before the ranks listen
        (tmp_path / ".ranks-began").touch()
        (tmp_path / "stop").write_text("preempted\n")
        pod.prepare_folder(node)
    for _ in range(pod.MAX_STALLED_RESTARTS):
        (tmp_path / ".ranks-began").touch()
        pod.prepare_folder(node)
    lines = (tmp_path / "requeues").read_text().splitlines()
    assert lines[0].startswith("job-1 step=00000020 requeue=1 ")
    assert [line.split(" ", 4)[4] for line in lines] == [
        *["the ranks did not begin"] * 4,
        *["preempted"] * 4,
        *["a rank or a node was lost"] * 3,
    ]
    (tmp_path / ".ranks-began").touch()
    with pytest.raises(PodError, match="a rank or a node was lost; not started again"):
        pod.prepare_folder(node)


@pytest.mark.parametrize(("stop_age", "reason"), [(60, "preempted: rank 1 was lost"), (0, "rank 1 was lost")])
def test_a_failure_is_a_preemption_only_if_the_request_came_first(tmp_path: Path, stop_age: int, reason: str) -> None:
    """After a failure, a JobSet ends the other pods, which then request a save."""
    node = make_node(tmp_path)
    pod.prepare_folder(node)
    (tmp_path / "stop").write_text("preempted\n")
    write_outcome(tmp_path, "failed", "rank 1 was lost")
    os.utime(tmp_path / "stop", (1000 - stop_age, 1000 - stop_age))
    os.utime(tmp_path / "outcome.json", (970, 970))
    pod.prepare_folder(node)
    assert (tmp_path / "requeues").read_text().split(" ", 4)[4] == f"{reason}\n"


def test_a_persons_stop_file_stays(tmp_path: Path) -> None:
    text = b"seen enough, it\x92s flat\n"  # not UTF-8
    (tmp_path / "stop").write_bytes(text)
    pod.prepare_folder(make_node(tmp_path))
    assert (tmp_path / "stop").read_bytes() == text


def test_a_claim_that_is_not_writable_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PodError, match=r"cannot write to .*/file/run: .*; the claim must be writable") as error:
        pod.prepare_folder(make_node(tmp_path / "file" / "run"))
    assert error.value.code is Code.BAD_INPUT


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((number, Code.BAD_INPUT) for number in (errno.EACCES, errno.EROFS, errno.ENOTSUP)),
        *((number, Code.REQUEUE) for number in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ENOENT)),
    ],
)
def test_only_permanent_errors_of_the_lock_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: Code
) -> None:
    def fail(*_: object, **__: object) -> RunLock:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(RunLock, "take", fail)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert pod.main(["tiny-llama"], make_variables(tmp_path / "run", 29_400, 0)) == code
    finally:
        signal.signal(signal.SIGTERM, before)
