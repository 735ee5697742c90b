"""Stop requests: all ranks save the same step, the exit status names the reason, and a resume works."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    alone,
    assert_finished,
    checkpoint_steps,
    events,
    forked,
    losses,
    outcome,
    torchrun,
    wait_for_step,
)
from trainer.life.outcome import FILE_VARIABLE, Code

# Too many steps for a run to end by itself; the resumed run needs fewer.
ENDLESS = [*SMALL_LLAMA, "run.folder=run", "schedule.kind=constant", "checkpoint.every=0", "steps=1000000"]


# test_life_ranks.py runs under torchrun by day.
@pytest.mark.parametrize("launch", [forked, pytest.param(torchrun, marks=pytest.mark.nightly)])
def test_a_signal_to_one_rank_stops_all_ranks(launch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*ENDLESS, "parallel.strategy=ddp", "batch.size=4"]
    with launch(2, arguments, tmp_path) as run:
        wait_for_step(run, folder, 3)
        os.kill(run.rank_pids()[1], signal.SIGUSR1)
        if launch is torchrun:
            assert run.wait() == 1, run.output
            assert f"exitcode  : {int(Code.REQUEUE)}" in run.output
        else:
            assert run.wait() == Code.REQUEUE, run.output
    ended = outcome(folder)
    step = ended["step"]
    assert (ended["outcome"], ended["reason"]) == ("requeue", "warned by a signal")
    assert checkpoint_steps(folder) == [step]
    assert sorted(losses(folder)) == sorted(losses(folder, rank=1)) == list(range(1, step + 1))

    with alone([*ENDLESS, "batch.size=4", f"steps={step + 3}"], tmp_path) as run:
        assert_finished(run)
    assert [event["step"] for event in events(folder, "loaded")] == [step]
    assert sorted(losses(folder)) == list(range(1, step + 4))
    assert outcome(folder)["outcome"] == "finished"


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGTERM, Code.REQUEUE, "terminated by a signal"),
        (signal.SIGINT, Code.STOPPED, "stop requested"),
    ],
    ids=["TERM", "INT"],
)
def test_a_signal_saves_and_exits_with_its_code(number: int, code: Code, reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with alone(ENDLESS, tmp_path) as run:
        wait_for_step(run, folder, 2)
        run.process.send_signal(number)
        assert run.wait() == code, run.output
    ended = outcome(folder)
    assert (ended["outcome"], ended["reason"]) == (code.name.lower(), reason)
    assert checkpoint_steps(folder) == [ended["step"]]
    assert f"{code.name.lower()} at step {ended['step']}: {reason}" in run.output


def test_a_stop_file_stops_the_run_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with alone(ENDLESS, tmp_path) as run:
        wait_for_step(run, folder, 2)
        (folder / "stop").write_text("the data was wrong\n")
        assert run.wait() == Code.STOPPED, run.output
    ended = outcome(folder)
    assert (ended["outcome"], ended["reason"]) == ("stopped", "the data was wrong")
    assert checkpoint_steps(folder) == [ended["step"]]
    assert not (folder / "stop").exists()

    # Under a job script the process exits with 0, and the file contains the outcome.
    file = tmp_path / "job" / "outcome.json"
    with alone(ENDLESS, tmp_path, **{FILE_VARIABLE: str(file)}) as run:
        wait_for_step(run, folder, ended["step"] + 2)
        (folder / "stop").write_text("time limit")
        assert run.wait() == 0, run.output
    decided = json.loads(file.read_text())
    assert (decided["outcome"], decided["reason"]) == ("requeue", "time limit")
    assert decided["step"] > ended["step"]

    # torchrun may restart the ranks after that: they have nothing to do.
    with alone(ENDLESS, tmp_path, **{FILE_VARIABLE: str(file)}) as run:
        assert run.wait() == 0, run.output
    assert len(events(folder, "started")) == 2
