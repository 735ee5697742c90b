"""A failing disk, damaged files and dead writers cost a run at most a checkpoint, and are reported."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.first_cause import HOST, assert_first_cause
from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    alone,
    checkpoint,
    checkpoint_steps,
    events,
    forked,
    losses,
    outcome,
    started,
)
from trainer.__main__ import main
from trainer.life.cause import Cause
from trainer.life.outcome import Code

# A file of this size can hold settings and random states, but no weights.
LIMIT = 65536
LIMITED = (
    sys.executable,
    "-c",
    f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT})); "
    "os.execv(sys.argv[1], sys.argv[1:])",
)


@pytest.mark.nightly
@pytest.mark.fault(7)
def test_a_run_whose_last_state_is_lost_is_not_finished(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, f"run.folder={folder}", "checkpoint.every=2", "checkpoint.asynchronous=false"]
    assert main([*arguments, "steps=2"]) == Code.FINISHED
    with started([*LIMITED, sys.executable, "-m", "trainer", *arguments, "steps=6"], tmp_path) as run:
        assert run.wait() == Code.BROKEN, run.output
    assert sorted(losses(folder)) == [1, 2, 3, 4, 5, 6]
    assert checkpoint_steps(folder) == [2]
    failed = [line for line in run.output.splitlines() if line.startswith("SAVE FAILED: rank 0 on ")]
    assert [line.split(": ")[2] for line in failed] == ["step 4 was NOT saved", "step 6 was NOT saved"], run.output
    assert [event["step"] for event in events(folder, "save_failed")] == [4, 6]
    lost = f"all 6 steps done, but the last state could not be saved: rank 0 on {HOST}: storage: step 6 was not saved: "
    assert outcome(folder)["reason"].startswith(f"{lost}cannot be started: File too large")
    assert_first_cause(folder, Cause.STORAGE, rank=0)

    # There is space again: only the time of four steps is lost.
    assert main([*arguments, "steps=6"]) == Code.FINISHED
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"step-{step:08d}" for step in (2, 4, 6)
    ]
    assert [event["step"] for event in events(folder, "save_published")] == [2, 4, 6]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_at_the_last_save_is_blamed_on_its_rank(rank: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [*SMALL_LLAMA, f"run.folder={folder}", "steps=2", "checkpoint.every=0", "parallel.strategy=ddp"]
    with forked(2, [str(rank), *settings], tmp_path, program="tests.trainer.full_disk_rank") as run:
        assert run.wait() == Code.BROKEN, run.output
    ended = assert_first_cause(folder, Cause.DISK_FULL, rank=rank)
    assert ended["failure"]["error"].startswith("step 2 was not saved: No space left on device (")
    lost = f"all 2 steps done, but the last state could not be saved: rank {rank} on {HOST}: disk full: "
    assert ended["reason"].startswith(lost)
    assert ended["reason"].endswith(Cause.DISK_FULL.fix)
    assert f"SAVE FAILED: rank {rank} on {HOST}: step 2 was NOT saved: No space left on device" in run.output
    assert checkpoint_steps(folder) == []


@pytest.mark.fault(10)
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, f"run.folder={folder}", "steps=4", "checkpoint.every=2", "checkpoint.asynchronous=false"]
    assert main(arguments) == Code.FINISHED
    undisturbed = losses(folder)
    shard = checkpoint(folder, 4) / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    capfd.readouterr()

    assert main(arguments) == Code.FINISHED
    expected = (
        "DAMAGED checkpoint skipped: step-00000004: shard-00000.safetensors is corrupt: "
        f"checksum of bytes 0 to {len(content)} differs"
    )
    lines = capfd.readouterr().out.splitlines()
    assert expected in lines
    assert "resumed from step-00000002, written by 1 ranks" in lines
    assert losses(folder) == undisturbed

    # A run that has already ended has nothing to do, and reports the same.
    assert main(arguments) == Code.FINISHED
    assert losses(folder) == undisturbed


@pytest.mark.parametrize("where", ["/proc/self", "/proc/nowhere/run", "a file/run"])
def test_a_folder_that_cannot_be_written_is_rejected(
    where: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").write_text("")
    status = main([*SMALL_LLAMA, f"run.folder={tmp_path / where}", "steps=2"])
    captured = capfd.readouterr()
    assert status == Code.BAD_INPUT
    assert f"run.folder: {tmp_path / where}" in captured.err
    assert "step 1/2" not in captured.out


@pytest.mark.fault(7)
def test_a_run_survives_a_full_disk_a_dead_writer_and_a_slow_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, f"run.folder={folder}", "steps=1000000", "checkpoint.every=10", "watchdog.hang_s=4"]
    with alone(arguments, tmp_path) as run:
        wait_for_checkpoint(run, folder, after=0)
        resource.prlimit(find_writer(run), resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        run.until(lambda: len(events(folder, "save_failed")) > 1, "two saves that failed")
        good = checkpoint_steps(folder)
        resource.prlimit(find_writer(run), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        newest = wait_for_checkpoint(run, folder, after=good[-1])

        os.kill(find_writer(run), signal.SIGKILL)
        run.until(lambda: events(folder, "save_restarted") != [], "a new writer")
        wait_for_checkpoint(run, folder, after=newest)

        # The last save may take longer than a step: it is not a hang.
        slow_writer = find_writer(run)
        os.kill(slow_writer, signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda: events(folder, "stopping") != [], "the last save")
        time.sleep(6)
        os.kill(slow_writer, signal.SIGCONT)
        assert run.wait() == Code.REQUEUE, run.output
    last_good = f"training continues, the last good checkpoint is step-{good[-1]:08d}"
    failures = [line for line in run.output.splitlines() if line.startswith("SAVE FAILED: rank 0 on ")]
    assert "File too large" in failures[1]
    assert failures[1].endswith(last_good)
    assert checkpoint_steps(folder)[-1] == outcome(folder)["step"] == max(losses(folder))


def wait_for_checkpoint(run: Launched, folder: Path, after: int) -> int:
    run.until(lambda: max(checkpoint_steps(folder), default=0) > after, f"a checkpoint after step {after}")
    return checkpoint_steps(folder)[-1]


def find_writer(run: Launched) -> int:
    (writer,) = [pid for pid in run.pids() if b"trainer.checkpoint.writer" in read_command(pid)]
    return writer


def read_command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
