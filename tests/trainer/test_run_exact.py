"""A run that was killed and resumed is the undisturbed run, bit for bit: every loss, all of the last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    checkpoint,
    checkpoint_steps,
    digests,
    events,
    finished,
    forked,
    kill_when_held,
    losses,
)

STEPS = 12
# The folder has the same name for both, since the settings are part of a checkpoint.
SETTINGS = [f"steps={STEPS}", "checkpoint.every=4", "batch.size=8", "batch.micro=1", "run.folder=run"]
GPT2 = ["tiny-gpt2", "model.layers=2", "model.dim=32", "model.seq_len=16", "model.dropout=0.1", *SMALL_LLAMA[5:]]
CASES = {
    "ddp": (4, [*GPT2, "parallel.strategy=ddp"]),
    "fsdp": (4, [*SMALL_LLAMA, "parallel.strategy=fsdp", "precision=bf16"]),
    "hsdp": (4, [*SMALL_LLAMA, "parallel.strategy=hsdp", "parallel.shard=2"]),
}


@pytest.mark.parametrize("strategy", CASES)
def test_kill_and_resume_change_no_bit(strategy: str, tmp_path: Path) -> None:
    ranks, words = CASES[strategy]
    words = [*words, *SETTINGS]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with forked(ranks, words, straight) as run:
        finished(run)

    # Rank 1 stands still, the others wait for it in a collective, and writers may be in the middle of step 8's files.
    with forked(ranks, words, killed, hold=(1, 10)) as run:
        resumed_from = kill_when_held(run, killed / "run")
    assert resumed_from in (4, 8)
    with forked(ranks, words, killed) as run:
        finished(run)

    loaded = events(killed / "run", "loaded")
    assert [event["step"] for event in loaded] == [resumed_from]
    assert losses(killed / "run") == losses(straight / "run")
    assert sorted(losses(straight / "run")) == list(range(1, STEPS + 1))
    assert checkpoint_steps(killed / "run")[-1] == STEPS
    assert digests(killed / "run", STEPS) == digests(straight / "run", STEPS)
    assert state(killed / "run") == state(straight / "run")


def state(folder: Path) -> dict[str, Any]:
    """All but the losses that health remembers: the loss of a saved step is not read back yet when it is saved."""
    found: dict[str, Any] = json.loads((checkpoint(folder, STEPS) / "state.json").read_text())
    del found["extra"]["health"]
    return found
