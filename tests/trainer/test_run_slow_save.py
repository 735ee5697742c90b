"""Runs that end while the writer of their checkpoints hangs: a save in flight survives, and waits are bounded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import SMALL_LLAMA, alone, checkpoint_steps, outcome
from tests.trainer.test_run_health import make_spikes
from trainer.life.cause import Cause
from trainer.life.outcome import Code

SLOW_WRITER = "tests.trainer.slow_writer_rank"
SETTINGS = [*SMALL_LLAMA, "run.folder=run", "schedule.kind=constant", "watchdog.hang_s=1"]


def test_a_save_in_flight_survives_a_broken_end(tmp_path: Path) -> None:
    """A spike after step 30 ends the run while step 30 is being written, which takes longer than the hang limit."""
    settings = [*make_spikes(tmp_path, 32), "health.spike=stop", "checkpoint.every=30", "checkpoint.asynchronous=true"]
    with alone([*settings, "watchdog.hang_s=1"], tmp_path, program=SLOW_WRITER, STALL_S="4") as run:
        assert run.wait() == Code.BROKEN, run.output
    assert outcome(tmp_path / "run")["outcome"] == "broken"
    assert checkpoint_steps(tmp_path / "run") == [30], run.output


@pytest.mark.nightly
def test_the_last_save_takes_at_most_its_time(tmp_path: Path) -> None:
    """Neither the earlier save nor the end of the writer may hold up the end of the run."""
    settings = [*SETTINGS, "steps=4", "checkpoint.every=2", "stop.save_within_s=1"]
    began = time.monotonic()
    with alone(settings, tmp_path, program=SLOW_WRITER, STALL_S="600") as run:
        assert run.wait() == Code.BROKEN, run.output
    # The writer would go on after 600 s.
    assert time.monotonic() - began < 300
    assert "SAVE FAILED" in run.output
    assert "earlier save, that of step 2, has not ended within" in run.output
    ended = assert_first_cause(tmp_path / "run", Cause.STORAGE, rank=0)
    assert ended["reason"].startswith("all 4 steps done, but the last state could not be saved: rank 0 on ")
