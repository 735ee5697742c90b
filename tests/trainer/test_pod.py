"""Pods of a training job on Kubernetes, as processes of this machine: real torchrun, real signals, real checkpoints."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    assert_finished,
    checkpoint,
    checkpoint_steps,
    losses,
    outcome,
    started,
    torchrun,
    wait_for_step,
)
from tests.trainer.test_life_ranks import free_port
from trainer import pod
from trainer.checkpoint.run_lock import RunLock
from trainer.life.outcome import Code
from trainer.life.stop import StopReason
from trainer.loop.end import End
from trainer.pod import Node, PodError

# With a constant rate, a run with more steps is the same up to there. So a run that must not end before it is stopped
# can have any number of steps.
RUN = (*SMALL_LLAMA, "parallel.strategy=ddp", "schedule.kind=constant", "batch.size=4", "batch.micro=2")
ENDLESS = 1_000_000


@pytest.fixture
def port() -> int:
    """Return a port that stays free from one start of the pods to the next."""
    return free_port()


def make_node(folder: Path, *, index: int = 0, job: str = "job-1", attempt: str = "attempt-1") -> Node:
    return Node(
        index=index,
        nodes=2,
        ranks=1,
        head="127.0.0.1",
        port=29_400,
        address="127.0.0.1",
        job=job,
        attempt=attempt,
        folder=folder,
        join_timeout_s=120,
    )


def write_outcome(folder: Path, name: str, reason: str = "why") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outcome.json").write_text(json.dumps({"outcome": name, "reason": reason, "step": 3, "time": 0.0}))


@contextmanager
def start_pod(
    folder: Path, port: int, index: int, *settings: str, nodes: int = 2, attempt: str = "1"
) -> Iterator[Launched]:
    """Start a pod with the variables of its manifest; what still runs at the end of the block is killed."""
    cwd = folder.parent / f"pod-{index}"
    cwd.mkdir(exist_ok=True)
    variables = make_variables(folder, port, index, nodes=nodes, attempt=attempt)
    with started([sys.executable, "-m", "trainer.pod", *settings], cwd, **variables) as run:
        yield run


def make_variables(folder: Path, port: int, index: int, *, nodes: int = 2, attempt: str = "1") -> dict[str, str]:
    """Return the variables of a pod's manifest."""
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "MUSTER_NODES": str(nodes),
        "MUSTER_RANKS": "1",
        "MUSTER_HEAD": "127.0.0.1",
        "MUSTER_PORT": str(port),
        "MUSTER_POD_IP": "127.0.0.1",
        "MUSTER_JOB": "job",
        "MUSTER_ATTEMPT": attempt,
        "MUSTER_RUN_FOLDER": str(folder),
        "MUSTER_JOIN_TIMEOUT_S": "240",
    }


def start_pods(stack: ExitStack, folder: Path, port: int, steps: int, attempt: str) -> list[Launched]:
    settings = (*RUN, f"steps={steps}", "checkpoint.every=20")
    return [stack.enter_context(start_pod(folder, port, index, *settings, attempt=attempt)) for index in range(2)]


def read_checksums(folder: Path, step: int) -> dict[str, list[str]]:
    """Return the checksums of every rank's part of a checkpoint."""
    files = json.loads((checkpoint(folder, step) / "manifest.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}


def assert_same_as_undisturbed(folder: Path, steps: int) -> None:
    """Compare the run bit for bit with one of the same ranks that nothing disturbed."""
    undisturbed = folder.parent / "undisturbed"
    settings = [*RUN, f"steps={steps}", "checkpoint.every=20", f"run.folder={undisturbed}"]
    with torchrun(2, settings, folder.parent) as run:
        assert_finished(run)
    assert losses(folder) == losses(undisturbed)
    assert read_checksums(folder, steps) == read_checksums(undisturbed, steps)


def test_an_evicted_pod_saves_and_the_next_pods_continue_bit_for_bit(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with ExitStack() as stack:
        first, evicted = start_pods(stack, folder, port, ENDLESS, "1")
        wait_for_step(first, folder, 3)
        evicted.process.send_signal(signal.SIGTERM)
        assert [evicted.wait(), first.wait()] == [Code.REQUEUE, Code.REQUEUE], first.output + evicted.output
    assert (folder / ".ranks-began").exists()
    saved = checkpoint_steps(folder)[-1]
    assert (outcome(folder)["outcome"], outcome(folder)["step"]) == ("requeue", saved)
    # The stop file and the signal race.
    assert outcome(folder)["reason"].startswith(("preempted", "warned by a signal"))

    steps = saved + 10
    with ExitStack() as stack:
        pods = start_pods(stack, folder, port, steps, "2")
        assert [run.wait() for run in pods] == [0, 0], pods[0].output + pods[1].output
    assert (folder / "requeues").read_text().startswith(f"job step={saved:08d} requeue=1 ")
    assert_same_as_undisturbed(folder, steps)

    # A pod that is replaced after the end does not wait for the others.
    with start_pod(folder, port, 1, *RUN, attempt="2") as late:
        assert late.wait() == Code.FINISHED, late.output


@pytest.mark.nightly
def test_a_lost_pod_is_replaced_and_joins_the_others(tmp_path: Path, port: int) -> None:
    """As in the form without JobSet: the other pods stay, and the id of the attempt is the same."""
    folder = tmp_path / "run"
    with ExitStack() as stack:
        first, lost = start_pods(stack, folder, port, ENDLESS, "1")
        first.until(lambda: checkpoint_steps(folder) != [], "checkpoint")
        lost.kill()
        before = max(losses(folder))
        replaced = stack.enter_context(
            start_pod(folder, port, 1, *RUN, f"steps={ENDLESS}", "checkpoint.every=20", attempt="1")
        )
        wait_for_step(first, folder, before + 5)
        first.process.send_signal(signal.SIGTERM)
        assert [first.wait(), replaced.wait()] == [Code.REQUEUE, Code.REQUEUE], first.output + replaced.output
    steps = checkpoint_steps(folder)[-1] + 5
    with ExitStack() as stack:
        pods = start_pods(stack, folder, port, steps, "2")
        assert [run.wait() for run in pods] == [0, 0], pods[0].output + pods[1].output
    assert_same_as_undisturbed(folder, steps)


def test_a_pod_that_waits_for_others_ends_at_sigterm(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with start_pod(folder, port, 0, *RUN) as run:
        run.until(lambda: "node 0 of 2" in run.output, "start")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == Code.REQUEUE, run.output
    assert not (folder / ".ranks-began").exists()
    # The request was for these pods: the next ones do not obey it. Their restart does not count as lack of progress.
    pod.prepare_folder(make_node(folder, job="job"))
    assert not (folder / "stop").exists()
    assert (folder / "requeues").read_text().endswith(" preempted\n")


def test_settings_that_the_trainer_refuses_end_the_job(tmp_path: Path, port: int) -> None:
    folder = tmp_path / "run"
    with start_pod(folder, port, 0, *RUN, "steps=none", nodes=1) as run:
        assert run.wait() == Code.BAD_INPUT, run.output
    assert outcome(folder)["outcome"] == "bad_input"


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
