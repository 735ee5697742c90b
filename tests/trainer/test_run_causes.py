"""Runs in which one rank fails in a given way: outcome.json and the report name the rank, the cause and what to do.

Other causes have tests of their own: data in test_run_error, numerics in test_run_health, hangs in test_run_hang.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.first_cause import HOST, assert_first_cause
from tests.trainer.launch import SMALL_LLAMA, assert_finished, checkpoint_steps, events, forked
from trainer.config.load import load
from trainer.life.cause import Cause
from trainer.life.failure import read_failures
from trainer.life.outcome import Code
from trainer.models import hf
from trainer.models.registry import build_network

RUN = [*SMALL_LLAMA, "steps=1000000", "checkpoint.every=0", "parallel.strategy=ddp", "batch.size=3", "batch.micro=1"]


@pytest.mark.parametrize(
    ("mode", "cause", "name", "error"),
    [
        ("memory", Cause.OUT_OF_MEMORY, "broken", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."),
        pytest.param("host memory", Cause.HOST_MEMORY, "failed", "RuntimeError: ", marks=pytest.mark.nightly),
        pytest.param("device", Cause.DEVICE, "failed", "AcceleratorError: CUDA error: ", marks=pytest.mark.nightly),
        ("full disk", Cause.DISK_FULL, "failed", "OSError: [Errno 28] No space left on device"),
        ("crash", Cause.LOST_PEER, "failed", "ended without a record: "),
    ],
)
def test_a_run_names_the_rank_that_failed_first(tmp_path: Path, mode: str, cause: Cause, name: str, error: str) -> None:
    folder = tmp_path / "run"
    step = 0 if mode == "memory" else 4  # a lack of memory ends only a run that has completed no step
    job = {"MUSTER_OUTCOME_FILE": str(folder / "outcome.json")}
    command = [mode, "1", str(step + 1), *RUN, f"run.folder={folder}"]
    with forked(3, command, tmp_path, program="tests.trainer.failing_rank", **job) as run:
        # If the run has ended for good, torchrun must not restart any rank.
        assert (run.wait() == 0) == (name == "broken"), run.output
    ended = assert_first_cause(folder, cause, rank=1)
    assert (ended["outcome"], ended["step"]) == (name, step), run.output
    assert ended["failure"]["error"].startswith(error)
    assert ended["failure"]["fix"] in ended["reason"]
    own = {failure.rank: failure for failure in read_failures(folder)}
    assert set(own) == ({0, 2} if mode == "crash" else {0, 1, 2})
    assert ("Fatal Python error: Segmentation fault" in run.output) == (mode == "crash")
    assert {own[rank].cause for rank in (0, 2)} == {Cause.LOST_PEER}
    (event,) = events(folder, "ended")
    assert event["reason"] == ended["reason"]


@pytest.mark.nightly_cases("index.json")
@pytest.mark.parametrize(
    "file",
    [
        "index.json",
        "shard-00001.safetensors",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("state.json", "rank-00001.json")),
    ],
)
def test_a_resumed_run_names_the_rank_that_cannot_read_its_checkpoint(tmp_path: Path, file: str) -> None:
    """The others do not wait until the hang limit, and are not blamed."""
    folder = tmp_path / "run"
    settings = [*RUN, f"run.folder={folder}", "parallel.strategy=fsdp", "checkpoint.every=1"]
    with forked(3, [*settings, "steps=1"], tmp_path) as run:
        assert_finished(run)
    command = [f"unreadable {file}", "1", "0", *settings, "steps=2"]
    with forked(3, command, tmp_path, program="tests.trainer.failing_rank") as run:
        assert run.wait() == 1, run.output
    assert_unreadable(folder, folder / "checkpoints" / "step-00000001" / file)


def test_a_run_names_the_rank_that_cannot_read_the_initial_weights(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = load(SMALL_LLAMA[0], [*SMALL_LLAMA[1:]])
    network: Any = build_network(config)
    hf.export(network.state_dict(), config.model, tmp_path / "weights")
    settings = [*RUN, f"run.folder={folder}", f"checkpoint.initial={tmp_path / 'weights'}"]
    command = ["unreadable model.safetensors", "1", "0", *settings]
    with forked(3, command, tmp_path, program="tests.trainer.failing_rank") as run:
        assert run.wait() == Code.BAD_INPUT, run.output
    cause = f"cannot be read ([Errno 5] Input/output error: '{tmp_path / 'weights' / 'model.safetensors'}')"
    assert f"checkpoint.initial: {tmp_path / 'weights'} {cause} (rank 1 on {HOST})" in run.output


def assert_unreadable(folder: Path, file: Path) -> None:
    ended = assert_first_cause(folder, Cause.STORAGE, rank=1)
    error = ended["failure"]["error"]
    assert error.startswith(f"UnreadableCheckpoint: {file} cannot be read: Input/output error, 2 times within 0.01 s; ")
    assert ended["outcome"] == "failed"
    others = [failure for failure in read_failures(folder) if failure.rank != 1]
    assert {failure.rank for failure in others} == {0, 2}
    for failure in others:
        assert failure.cause is Cause.LOST_PEER
        assert failure.error == f"PeerError: rank 1 on {HOST} failed: {error}"


def test_a_run_names_the_rank_that_did_not_join(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ["absent", "1", "1", *RUN, f"run.folder={folder}", "run.join_timeout_s=1"]
    with forked(3, command, tmp_path, program="tests.trainer.failing_rank") as run:
        assert run.wait() == 1, run.output
    ended = assert_first_cause(folder, Cause.NETWORK, rank=1)
    assert (ended["outcome"], ended["step"]) == ("failed", 0)
    assert ended["failure"]["error"] == f"WorldError: did not join within 1 s: rank 1 on {HOST}"


def test_a_users_script_names_the_rank_whose_code_failed(tmp_path: Path) -> None:
    """The other rank waits for it in an all-reduce, loses it, and is not blamed."""
    folder = tmp_path / "run"
    with forked(2, [str(folder)], tmp_path, program="tests.trainer.failing_script") as run:
        assert run.wait() == 1, run.output
    ended = assert_first_cause(folder, Cause.USER_CODE, rank=1)
    assert (ended["outcome"], ended["step"]) == ("broken", 2), run.output
    assert ended["failure"]["error"] == "KeyError: 'label'"
    assert re.search(r"/failing_script\.py:\d+ in read_batch$", ended["failure"]["place"])
    assert f"trainer: broken at step 2: rank 1 on {HOST}: user code: KeyError: 'label' (" in run.output
    assert {failure.rank: failure.cause for failure in read_failures(folder)}[0] is Cause.LOST_PEER


def test_an_error_before_a_close_in_finally_ends_all_ranks_and_their_writers(tmp_path: Path) -> None:
    """The rank that fails closes its trainer without waiting for the other one, which loses it and closes too."""
    folder = tmp_path / "run"
    with forked(2, [str(folder)], tmp_path, program="tests.trainer.closing_script") as run:
        assert run.wait() == 1, run.output
    for rank in (0, 1):
        assert f"rank {rank} closed its trainer; its writer has ended" in run.output, run.output
    ended = assert_first_cause(folder, Cause.USER_CODE, rank=1)
    assert (ended["outcome"], ended["step"]) == ("broken", 2), run.output
    assert ended["failure"]["error"] == "KeyError: 'label'"
    assert {failure.rank: failure.cause for failure in read_failures(folder)}[0] is Cause.LOST_PEER
    assert checkpoint_steps(folder) == [1, 2]
