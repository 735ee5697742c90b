"""A stop while steps are long: the ranks give up the step between micro-batches, and a resume repeats it exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.launch import (
    SMALL_LLAMA,
    assert_finished,
    checkpoint_steps,
    digests,
    events,
    forked,
    losses,
    outcome,
    sample_ids,
)
from trainer.__main__ import main
from trainer.life.outcome import Code
from trainer.life.stop import StopListener, StopReason, explain_slow_stop
from trainer.life.vote import Vote
from trainer.loop.stop_check import StopCheck, count_between_checks
from trainer.world import World

STEPS, MICRO_S, MICRO_BATCHES = 9, 0.3, 4
LONG_STEP = 6
SETTINGS = [*SMALL_LLAMA, "run.folder=run", f"steps={STEPS}", "checkpoint.every=0", "metrics.sample_ids=true"]
SETTINGS += [f"batch.size={2 * MICRO_BATCHES}", "batch.micro=1"]
# In the second micro-batch of a step: from outside, a signal could come between the last one and the next step.
WARNED = f"1:{(LONG_STEP - 1) * MICRO_BATCHES + 2}"
SLOW_JOB = {"MICRO_S": str(MICRO_S), "WARNED": WARNED, "SLURM_JOB_ID": "1"}


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=pytest.mark.nightly)])
def test_a_long_step_is_abandoned_and_repeated_exactly(strategy: str, tmp_path: Path) -> None:
    settings = [*SETTINGS, f"parallel.strategy={strategy}"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    with forked(2, settings, straight) as run:
        assert_finished(run)
    slow = [*settings, "stop.warning_s=0.1"]
    with forked(2, slow, stopped, program="tests.trainer.slow_step_rank", **SLOW_JOB) as run:
        assert run.wait() == Code.REQUEUE, run.output
    step = outcome(stopped / "run")["step"]
    assert step == LONG_STEP - 1
    assert [event["step"] for event in events(stopped / "run", "abandoned")] == [LONG_STEP]
    assert checkpoint_steps(stopped / "run") == [step]
    assert "SLOW STOP a stop takes about " in run.output

    with forked(2, settings, stopped) as run:
        assert_finished(run)
    assert losses(stopped / "run") == losses(straight / "run")
    assert sample_ids(stopped / "run") == sample_ids(straight / "run")
    assert digests(stopped / "run", STEPS) == digests(straight / "run", STEPS)


@pytest.mark.parametrize("job", ["", "4711"], ids=["no cluster", "slurm"])
def test_only_a_slurm_job_warns_about_a_slow_stop(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    settings = [*SMALL_LLAMA, "steps=6", "parallel.strategy=single", "stop.warning_s=1e-6", f"run.folder={tmp_path}"]
    assert main(settings) == Code.FINISHED
    assert ("SLOW STOP a stop takes about " in capfd.readouterr().out) == bool(job)


@pytest.mark.parametrize(
    ("step_s", "micro_batches", "expected"), [(50, 2, 1), (50, 500, 10), (2, 8, 4), (1, 1, 1), (1.5, 8, 6)]
)
def test_long_steps_are_checked_about_once_a_second(step_s: float, micro_batches: int, expected: int) -> None:
    assert count_between_checks(step_s, micro_batches) == expected


@pytest.mark.parametrize(
    ("step_s", "micro_batches", "delay_s"),
    [(None, 4, 0), (0.2, 4, 0.6), (50, 2, 25), (50, 1, 50), (50, 100, 1), (2, 2, 1)],
    ids=["unknown", "short", "two parts", "one part", "many parts", "two seconds"],
)
def test_a_stop_waits_for_a_part_of_a_long_step(step_s: float | None, micro_batches: int, delay_s: float) -> None:
    check = make_check(None)
    check.step_s, check.micro_batches = step_s, micro_batches
    assert check.delay_s == pytest.approx(delay_s)


def test_short_steps_are_not_checked_by_themselves() -> None:
    check = make_check(StopReason.WARNED)
    assert check.after_step() is StopReason.WARNED  # the duration of the first step is unknown
    check.step_s = 0.5
    check.before_micro_batch(1, 4)
    assert check.after_step() is None


def make_check(reason: StopReason | None) -> StopCheck:
    world = World(0, 1, 0, 1, "here", torch.device("cpu"), ())
    listener = StopListener(Path("run"), rank=1)
    if reason is not None:
        listener._record(reason)
    return StopCheck(stop=listener, vote=Vote(world), device=world.device)


@pytest.mark.parametrize(
    ("warning_s", "delay_s", "save_s", "is_slow"), [(120, 50, 60, False), (120, 50, 80, True), (0, 500, 500, False)]
)
def test_a_stop_that_takes_longer_than_the_warning_is_explained(
    warning_s: float, delay_s: float, save_s: float, is_slow: bool
) -> None:
    text = explain_slow_stop(warning_s, delay_s, save_s)
    assert bool(text) == is_slow
    if is_slow:
        assert "about 50 s until the ranks stop training and 80 s for the save" in text
        assert "the cluster warns 120 s ahead (stop.warning_s)" in text
