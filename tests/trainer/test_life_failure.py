"""Failures explained: the class of an error, the first cause among the failures of all ranks, and users' scripts."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.first_cause import HOST, assert_first_cause
from tests.trainer.launch import outcome
from trainer.api import Trainer
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.life import failure as failures
from trainer.life import outcome as outcomes
from trainer.life.cause import Cause, classify, find_place
from trainer.life.failure import Failure, find_first, is_repeated, read_failures, record
from trainer.world import DeviceError, WorldError

REPO = Path(__file__).resolve().parents[2]


def problem(where: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, "is wrong")])


# Importing the compiler takes seconds.
InductorError = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
ERRORS: list[tuple[Exception, Cause]] = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Cause.OUT_OF_MEMORY),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), Cause.OUT_OF_MEMORY),
    (RuntimeError("NCCL error in: NCCLUtils.cpp:77, Cuda failure 2 'out of memory'"), Cause.OUT_OF_MEMORY),
    (MemoryError(), Cause.HOST_MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), Cause.HOST_MEMORY),
    (problem("data.path"), Cause.DATA),
    (problem("evaluation.path"), Cause.DATA),
    (problem("targets"), Cause.DATA),
    (problem("checkpoint.initial"), Cause.SETTINGS),
    (problem("evaluation.share"), Cause.SETTINGS),
    (torch.AcceleratorError("CUDA error: device-side assert triggered"), Cause.DATA),
    (FloatingPointError("overflow"), Cause.NUMERICS),
    (RuntimeError("Function 'MulBackward0' returned nan values in its 0th output."), Cause.NUMERICS),
    (RuntimeError("[pair.cc:538] Connection closed by peer [10.0.0.2]:31337"), Cause.LOST_PEER),
    (torch.distributed.DistNetworkError("failed to recv, got 0 bytes"), Cause.LOST_PEER),
    (torch.distributed.DistBackendError("NCCL error: ncclRemoteError: remote process exited"), Cause.LOST_PEER),
    (torch.distributed.DistBackendError("NCCL error: ncclSystemError: System call failed"), Cause.NETWORK),
    (WorldError("did not join within 300 s: rank 3"), Cause.NETWORK),
    (DeviceError("GPU 0 on gpu-1 cannot be used: CUDA out of memory"), Cause.DEVICE),
    (RuntimeError("[buffer.cc:81] Timed out waiting 3600000ms for recv operation to complete"), Cause.HANG),
    (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), Cause.DEVICE),
    (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), Cause.DEVICE),
    (OSError(errno.ENOSPC, "No space left on device"), Cause.DISK_FULL),
    (OSError(errno.ESTALE, "Stale file handle"), Cause.STORAGE),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), Cause.NETWORK),
    (OSError(errno.ETIMEDOUT, "Connection timed out"), Cause.NETWORK),
    (OSError(errno.EHOSTUNREACH, "No route to host"), Cause.NETWORK),
    (InductorError("CppCompileError: C++ compile error"), Cause.COMPILER),
    (InductorError("OSError: [Errno 28] No space left on device: '/tmp/torchinductor'"), Cause.DISK_FULL),
]


@pytest.mark.parametrize(("error", "cause"), ERRORS, ids=lambda value: getattr(value, "value", type(value).__name__))
def test_errors_have_a_cause(error: Exception, cause: Cause) -> None:
    assert classify(error) is cause


def test_an_error_that_is_raised_from_another_has_the_cause_of_that_error() -> None:
    error = RuntimeError("cannot read the batch")
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    assert classify(error) is Cause.STORAGE


def test_real_errors_of_torch_have_a_cause() -> None:
    with pytest.raises(RuntimeError) as memory:
        torch.empty(1 << 60)
    assert classify(memory.value) is Cause.HOST_MEMORY
    with pytest.raises(IndexError) as token:
        nn.Embedding(4, 2)(torch.tensor([4]))
    assert classify(token.value) is Cause.DATA


def test_the_place_is_in_the_users_code_and_not_in_torch() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(3, 2)(torch.ones(1, 4))
    assert classify(caught.value) is Cause.USER_CODE
    assert re.search(r"/test_life_failure\.py:\d+ in test_the_place_is_in_the_users", find_place(caught.value))


def test_an_unexpected_error_in_the_trainer_is_told_apart_from_one_in_its_data() -> None:
    from trainer.data.order import sample_ids
    from trainer.schedule import learning_rate

    wrong: Any = None
    with pytest.raises(TypeError) as data:
        sample_ids(wrong, wrong, wrong, wrong)
    assert classify(data.value) is Cause.DATA
    with pytest.raises(AttributeError) as own:
        learning_rate(wrong, 1.0, 1, 1)
    assert classify(own.value) is Cause.TRAINER
    assert find_place(own.value).startswith("trainer/schedule.py:")


@pytest.mark.parametrize("cause", list(Cause))
def test_the_fix_names_only_commands_of_the_cluster_that_the_rank_runs_on(cause: Cause) -> None:
    assert not re.search("sinfo|sbatch|scontrol|srun|muster fabric", cause.find_fix(in_pod=True))
    assert "kubectl" not in cause.find_fix(in_pod=False)


def test_a_record_of_a_pod_keeps_its_fix_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as in_pod:
        in_pod.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        written = failure(0, Cause.NETWORK)
        record(tmp_path, written)
    (recorded,) = read_failures(tmp_path)
    assert recorded == written
    # The rank that ended without a record is to blame.
    first = find_first([recorded])
    assert first is not None
    assert first.fix == first.summarise()["fix"] == Cause.LOST_PEER.find_fix(in_pod=True) != Cause.LOST_PEER.fix
    assert first.fix in str(first)


def test_every_cause_has_a_label_and_a_fix() -> None:
    assert all(cause.fix for cause in Cause if cause is not Cause.SETTINGS)
    assert Cause.OUT_OF_MEMORY.label == "out of memory"


def failure(rank: int, cause: Cause, **changes: Any) -> Failure:
    hosts = ("a", "a", "b", "b") if cause in (Cause.LOST_PEER, Cause.HANG, Cause.NETWORK) else ()
    whole = Failure(
        time=100.0, attempt="job.0", rank=rank, host="ab"[rank // 2], step=7, cause=cause, error="E", hosts=hosts
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("failures", "rank", "cause"),
    [
        # The clock of the victim's node is behind.
        ([failure(0, Cause.LOST_PEER, time=99.0), failure(3, Cause.USER_CODE)], 3, Cause.USER_CODE),
        ([failure(2, Cause.STORAGE, time=101.0), failure(1, Cause.DATA)], 1, Cause.DATA),
        ([failure(0, Cause.NETWORK), failure(1, Cause.DEVICE, time=400.0)], 1, Cause.DEVICE),
        ([failure(rank, Cause.LOST_PEER) for rank in (0, 1, 3)], 2, Cause.LOST_PEER),
        ([failure(rank, Cause.HANG, beats=20 - rank) for rank in range(4)], 3, Cause.HANG),
        # All are in the same step, and only one is in code outside the trainer.
        ([failure(rank, Cause.HANG, place="a.py:1 in f" * (rank == 2)) for rank in range(4)], 2, Cause.HANG),
        ([failure(rank, Cause.HANG) for rank in (0, 2, 3)], 1, Cause.LOST_PEER),
        ([failure(rank, Cause.LOST_PEER, time=100.0 - rank) for rank in range(4)], 3, Cause.LOST_PEER),
        ([failure(0, Cause.HANG, hosts=("a",))], 0, Cause.HANG),
        ([failure(rank, Cause.NETWORK, hosts=(), missing=((2, "b"), (3, "b"))) for rank in (0, 1)], 2, Cause.NETWORK),
    ],
)
def test_the_first_cause_is_found(failures: list[Failure], rank: int, cause: Cause) -> None:
    first = find_first(failures)
    assert first is not None
    assert (first.rank, first.host, first.cause) == (rank, "ab"[rank // 2], cause)
    assert find_first(failures[::-1]) == first


def test_lost_ranks_are_named() -> None:
    first = find_first([failure(1, Cause.LOST_PEER)])
    assert str(first).startswith("rank 0 on a: lost peer: ended without a record, as did rank 2 on b, rank 3 on b: ")
    assert find_first([]) is None


def test_the_same_unexpected_error_at_the_same_step_is_repeated() -> None:
    first = failure(1, Cause.TRAINER, attempt="job.1", place="trainer/step.py:60 in run")
    before = replace(first, attempt="job.0", time=50.0)
    assert is_repeated(first, [before, first])
    assert not is_repeated(first, [first])
    assert not is_repeated(first, [replace(before, step=6), first])
    assert not is_repeated(first, [replace(before, error="F"), first])
    assert not is_repeated(replace(first, cause=Cause.DEVICE), [replace(before, cause=Cause.DEVICE)])


def test_a_lack_of_memory_at_the_same_step_is_repeated_whatever_its_text() -> None:
    first = failure(1, Cause.OUT_OF_MEMORY, attempt="job.1", place="trainer/step.py:60 in run")
    before = replace(first, attempt="job.0", time=50.0, error="CUDA out of memory. Process 4711 has 3 GiB in use.")
    assert is_repeated(first, [before, first])
    assert not is_repeated(first, [replace(before, step=6), first])
    assert not is_repeated(first, [replace(before, place="trainer/step.py:70 in run"), first])


def test_failures_survive_an_incomplete_line_and_a_full_disk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written = failure(3, Cause.LOST_PEER)
    record(tmp_path, written)
    file = tmp_path / "failures" / "rank-00003.jsonl"
    file.write_bytes(file.read_bytes() + b'{"time": 1')
    assert read_failures(tmp_path) == [written]
    record(tmp_path, written)
    assert read_failures(tmp_path) == [written] * 2
    (tmp_path / "failures" / "rank-00001.jsonl").symlink_to("/dev/full")
    record(tmp_path, failure(1, Cause.DATA))
    assert "the failure cannot be written" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cause", "name", "status"), [(Cause.DATA, "broken", 0), (Cause.DEVICE, "failed", 1), (Cause.TRAINER, "failed", 1)]
)
def test_a_failure_that_a_restart_cannot_fix_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause, name: str, status: int
) -> None:
    monkeypatch.setenv("MUSTER_OUTCOME_FILE", str(tmp_path / "outcome.json"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    first, victim = failure(2, cause, error='a " and , "step": 9, in a text'), failure(1, Cause.LOST_PEER)
    record(tmp_path, victim)
    record(tmp_path, first)
    assert outcomes.end_after_failure(tmp_path, victim, 90.0)[0] == status
    assert outcome(tmp_path)["outcome"] == name
    assert outcome(tmp_path)["failure"]["rank"] == 2
    assert (outcomes.read_decided() is None) == (name == "failed")
    # A rank that loses its peers later changes nothing.
    record(tmp_path, failure(0, Cause.LOST_PEER, time=300.0))
    assert outcomes.end_after_failure(tmp_path, failure(0, Cause.LOST_PEER, time=300.0), 90.0)[0] == status
    assert outcome(tmp_path)["failure"]["rank"] == 2
    assert read_by_job_script(tmp_path) == f"{name} 7"


def read_by_job_script(folder: Path) -> str:
    """Return outcome and step as train.sbatch reads them."""
    command = f". {REPO}/slurm/jobs/train/outcome.sh\nread_outcome '\\1 \\3'"
    shell = subprocess.run(["bash", "-c", command], env={"run": str(folder)}, capture_output=True, text=True)
    return shell.stdout.strip()


def test_the_same_unexpected_error_again_ends_the_run(tmp_path: Path) -> None:
    first = failure(1, Cause.TRAINER, place="trainer/step.py:60 in run")
    again = replace(first, attempt="job.1", time=200.0)
    for each, name in ((first, "failed"), (again, "broken")):
        record(tmp_path, each)
        outcomes.end_after_failure(tmp_path, each, each.time - 10)
        assert outcome(tmp_path)["outcome"] == name
    assert "not restarted: the error is the same as in an earlier attempt" in outcome(tmp_path)["reason"]


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("step", "events", "name"),
    [
        (0, [], "broken"),
        (0, ["started", "joined"], "broken"),
        # While processes of the previous start still hold memory.
        (0, ["started", "first_step", "started"], "failed"),
        (7, ["started", "first_step"], "failed"),
    ],
)
def test_a_lack_of_memory_ends_a_run_that_never_completed_a_step(
    tmp_path: Path, step: int, events: list[str], name: str
) -> None:
    for event in events:
        with (tmp_path / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": event}) + "\n")
    first = failure(1, Cause.OUT_OF_MEMORY, step=step)
    record(tmp_path, first)
    outcomes.end_after_failure(tmp_path, first, 90.0)
    assert outcome(tmp_path)["outcome"] == name
    again = replace(first, attempt="job.1", time=200.0)
    record(tmp_path, again)
    outcomes.end_after_failure(tmp_path, again, 190.0)
    assert outcome(tmp_path)["outcome"] == "broken", "at the same step"


def test_an_outcome_that_is_decided_stays(tmp_path: Path) -> None:
    before = {"outcome": "stopped", "reason": "stop requested", "step": 5, "time": 95.0}
    (tmp_path / "outcome.json").write_text(json.dumps(before))
    late = failure(1, Cause.LOST_PEER)
    assert outcomes.end_after_failure(tmp_path, late, 90.0)[0] == outcomes.Code.STOPPED
    assert outcome(tmp_path) == before
    assert outcomes.end_after_failure(tmp_path, late, 96.0)[0] == outcomes.Code.BROKEN, "of an earlier start"


def test_only_some_of_many_ranks_read_the_failures_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Path] = []

    def count_file(path: Path) -> list[Any]:
        files.append(path)
        return []

    monkeypatch.setattr(failures, "read_lines", count_file)
    many = [replace(failure(0, Cause.DEVICE), rank=rank) for rank in range(200)]
    for each in many:
        record(tmp_path, each)
    for each in many:
        outcomes.end_after_failure(tmp_path, each, 90.0)
    readers = 8 + 3
    assert len(files) == readers * 2 * 200 + (200 - readers)
    assert outcome(tmp_path)["failure"]["cause"] == "device"


def test_a_rank_that_does_not_read_the_others_blames_none_of_them(tmp_path: Path) -> None:
    victim = replace(failure(1, Cause.LOST_PEER), rank=71)
    outcomes.end_after_failure(tmp_path, victim, 90.0)
    assert outcome(tmp_path)["failure"]["rank"] == 71
    outcomes.end_after_failure(tmp_path, replace(failure(1, Cause.DEVICE), rank=72), 90.0)
    assert outcome(tmp_path)["failure"]["rank"] == 72
    outcomes.end_after_failure(tmp_path, victim, 90.0)
    assert outcome(tmp_path)["failure"]["rank"] == 72


class Model(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ torch.ones(3, 2)


def test_an_uncaught_error_of_a_users_script_is_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.excepthook
    trainer = Trainer(nn.Sequential(nn.Linear(5, 5), Model()), folder=tmp_path, device="cpu")
    with pytest.raises(RuntimeError) as caught:
        trainer.train_step({"inputs": torch.ones(4, 5), "targets": torch.ones(4).long()})
    sys.excepthook(caught.type, caught.value, caught.tb)
    (recorded,) = read_failures(tmp_path)
    assert (recorded.cause, recorded.rank, recorded.step) == (Cause.USER_CODE, 0, 0)
    assert "mat1 and mat2 shapes cannot be multiplied" in recorded.error
    assert recorded.place.endswith(" in forward")
    assert assert_first_cause(tmp_path, Cause.USER_CODE, rank=0)["outcome"] == "broken"
    printed = capfd.readouterr().err
    assert "Traceback (most recent call last):" in printed
    assert printed.splitlines()[-1].startswith(
        f"trainer: broken at step 0: rank 0 on {HOST}: user code: RuntimeError: "
    )
    trainer.close()
    assert sys.excepthook == before


def test_the_outcome_of_a_users_script_is_that_of_its_last_start(tmp_path: Path) -> None:
    before = {"outcome": "failed", "reason": "lost peer", "step": 5, "time": 95.0}
    (tmp_path / "outcome.json").write_text(json.dumps(before))
    trainer = Trainer(nn.Linear(2, 2), folder=tmp_path, device="cpu")
    assert not (tmp_path / "outcome.json").exists()
    trainer.train_step({"inputs": torch.ones(4, 2), "targets": torch.ones(4).long()})
    trainer.close()
    ended = outcome(tmp_path)
    assert (ended["outcome"], ended["step"], ended["failure"]) == ("finished", 1, None)


def test_a_script_that_closes_its_trainer_in_spite_of_an_error_has_not_finished(tmp_path: Path) -> None:
    def run_script() -> None:
        trainer = Trainer(nn.Linear(2, 2), folder=tmp_path, device="cpu")
        try:
            raise KeyError("step")
        finally:
            trainer.close()

    before = sys.excepthook
    try:
        with pytest.raises(KeyError) as caught:
            run_script()
        assert not (tmp_path / "outcome.json").exists()
        sys.excepthook(caught.type, caught.value, caught.tb)
    finally:
        sys.excepthook = before
    assert outcome(tmp_path)["failure"]["place"].endswith(" in run_script")


def test_a_script_that_cannot_build_its_model_ends_with_the_cause(tmp_path: Path) -> None:
    def build() -> nn.Module:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    folder = tmp_path / "run"
    with pytest.raises(torch.OutOfMemoryError):
        Trainer(build, folder=folder, device="cpu")
    assert assert_first_cause(folder, Cause.OUT_OF_MEMORY, rank=0)["outcome"] == "broken"


def test_a_script_without_a_run_folder_gets_none(tmp_path: Path) -> None:
    Trainer(nn.Linear(2, 2), folder=tmp_path / "run", device="cpu").close()
    assert list(tmp_path.iterdir()) == []
