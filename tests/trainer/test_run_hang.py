"""Whole runs in which a rank stands still: it is named with the cause, stacks are written, and no process remains."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.failing_rank import STUCK
from tests.trainer.first_cause import HOST, assert_first_cause
from tests.trainer.launch import SMALL_LLAMA, Launched, checkpoint_steps, forked, torchrun, wait_until_gone
from trainer.life.cause import Cause
from trainer.life.outcome import Code

PROGRAM = "tests.trainer.failing_rank"
STEP = 7
RUN = [*SMALL_LLAMA, "run.folder=run", "steps=1000000", "checkpoint.every=2", "checkpoint.asynchronous=true"]
RANKS = ["parallel.strategy=ddp", "batch.size=2", "batch.micro=1"]
# At least the limit of 5 s; a busy machine notices it later.
SECONDS = r"([5-9]|\d{2,})"
# The launcher, two ranks and the writers of their checkpoints.
PROCESSES = 5
SILENT = f"silent, because their process or node is dead or stuck: rank 1 on {HOST} "


@pytest.mark.fault(31)
@pytest.mark.parametrize("phase", ["step", pytest.param("data", marks=pytest.mark.nightly)])
def test_a_rank_that_hangs_is_named(tmp_path: Path, phase: str) -> None:
    """In a step, it has made the same progress as the rank that waits for it, and only its stack tells them apart."""
    mode = "hang" if phase == "step" else "hang in data"
    with forked(2, [mode, "1", str(STEP), *RUN, *RANKS, "watchdog.hang_s=5"], tmp_path, program=PROGRAM) as run:
        processes = wait_until_stuck(run, tmp_path)
        assert run.wait() == Code.HANG, run.output
    wait_until_gone(processes)
    ended = assert_first_cause(tmp_path / "run", Cause.HANG, rank=1)
    assert (ended["outcome"], ended["step"]) == ("failed", STEP - 1)
    # The setting is the limit, although steps of a few milliseconds are followed by a limit of a minute otherwise.
    error = ended["failure"]["error"]
    assert re.fullmatch(rf"no progress for {SECONDS} s \(limit 5 s\), in {phase} of step {STEP}", error)
    assert re.search(r"/failing_rank\.py:\d+ in stand_still$", ended["failure"]["place"])
    report = (tmp_path / "run" / "hang" / "report.txt").read_text()
    assert f"rank 1 on {HOST} (step {STEP}, {phase})" in report
    assert "rank 0" not in report
    assert "in differentiate" in read_stacks(tmp_path, 0)
    assert "in stand_still" in read_stacks(tmp_path, 1)
    assert checkpoint_steps(tmp_path / "run") == [2, 4, 6]


@pytest.mark.nightly
def test_a_frozen_rank_is_named(tmp_path: Path) -> None:
    """By day, test_life_ranks.py freezes a rank without a whole run."""
    with forked(2, ["freeze", "1", str(STEP), *RUN, *RANKS, "watchdog.hang_s=5"], tmp_path, program=PROGRAM) as run:
        processes = wait_until_stuck(run, tmp_path)
        first, frozen = run.rank_pids()
        wait_until_gone([first])
        # As torchrun does half a minute after the end of a rank.
        os.kill(frozen, signal.SIGKILL)
        assert run.wait() == Code.HANG, run.output
    wait_until_gone(processes)
    assert_frozen(tmp_path, rf"no progress for {SECONDS} s \(limit 5 s\)")
    assert SILENT in run.output


@pytest.mark.nightly
def test_a_frozen_rank_is_named_long_before_the_limit_and_killed_by_torchrun(tmp_path: Path) -> None:
    """The limit is the usual one, at least a minute."""
    with torchrun(2, ["freeze", "1", str(STEP), *RUN, *RANKS], tmp_path, program=PROGRAM) as run:
        processes = wait_until_stuck(run, tmp_path)
        assert run.wait() == 1, run.output
    wait_until_gone(processes)
    assert_frozen(tmp_path, "1 ranks have been silent for 15 s")
    assert SILENT in run.output
    assert f"failed (exitcode: {int(Code.HANG)}) local_rank: 0 " in run.output


@pytest.mark.nightly
def test_the_usual_limit_is_a_minute_and_three_steps(tmp_path: Path) -> None:
    # Five steps must count.
    with forked(2, ["hang", "1", str(3 * STEP), *RUN, *RANKS], tmp_path, program=PROGRAM) as run:
        processes = wait_until_stuck(run, tmp_path)
        assert run.wait() == Code.HANG, run.output
    wait_until_gone(processes)
    error = assert_first_cause(tmp_path / "run", Cause.HANG, rank=1)["failure"]["error"]
    age_s, limit_s = (int(number) for number in re.findall(r"\d+", error)[:2])
    # Steps take far less than a second each, even on a busy machine.
    assert 60 <= limit_s <= 63, error
    assert limit_s <= age_s <= limit_s + 5, error


def wait_until_stuck(run: Launched, folder: Path) -> list[int]:
    """Wait until the rank stands still, and return all processes of the run."""
    run.until((folder / STUCK).exists, "rank that stands still")
    processes = run.pids()
    assert len(processes) == PROCESSES
    return processes


def assert_frozen(folder: Path, reason: str) -> None:
    """Assert that the frozen rank is blamed by the other one, which writes its own stack."""
    ended: dict[str, Any] = assert_first_cause(folder / "run", Cause.LOST_PEER, rank=1)
    assert (ended["outcome"], ended["step"]) == ("failed", STEP - 1)
    assert ended["failure"]["error"].startswith("ended without a record: its process was killed or is stuck")
    assert "in differentiate" in read_stacks(folder, 0)
    report = (folder / "run" / "hang" / "report.txt").read_text()
    assert re.match(reason, report), report
    assert SILENT in report
    assert checkpoint_steps(folder / "run") == [2, 4, 6]


def read_stacks(folder: Path, rank: int) -> str:
    return (folder / "run" / "hang" / f"rank-{rank:05d}.txt").read_text()
