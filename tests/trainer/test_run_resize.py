"""A run that changes its ranks and strategy twice sees every sample once and learns the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    events,
    forked,
    kill_when_held,
    losses,
    sample_ids,
)
from trainer.__main__ import main
from trainer.data import order
from trainer.life.outcome import Code

STEPS, BATCH, SAMPLES, SEED = 12, 8, 20, 7
ARGUMENTS = [
    *SMALL_LLAMA,
    f"steps={STEPS}",
    f"batch.size={BATCH}",
    "batch.micro=2",
    f"data.samples={SAMPLES}",
    f"run.seed={SEED}",
    "checkpoint.every=2",
    "metrics.sample_ids=true",
]
# Ranks sum a step's gradients in another order; after twelve steps of Adam in fp32 the difference is about 1e-6.
TOLERANCE = 2e-5


@pytest.mark.parametrize("engine", ["torch", pytest.param("muster", marks=pytest.mark.nightly)])
def test_a_resized_run_skips_and_repeats_no_sample(engine: str, tmp_path: Path) -> None:
    folder, straight = tmp_path / "resized", tmp_path / "straight"
    arguments = [*ARGUMENTS, f"run.folder={folder}"]
    with forked(4, [*arguments, "parallel.strategy=fsdp"], tmp_path, hold=(1, 6)) as run:
        first = kill_when_held(run, folder)
    ddp = ["parallel.strategy=ddp", f"parallel.engine={engine}"]
    with forked(2, [*arguments, *ddp], tmp_path, hold=(1, 10)) as run:
        second = kill_when_held(run, folder, after=first)
    assert main([*arguments, "parallel.strategy=single"]) == Code.FINISHED
    assert main([*ARGUMENTS, f"run.folder={straight}", "parallel.strategy=single"]) == Code.FINISHED

    assert [(e["step"], e["written_by"]) for e in events(folder, "loaded")] == [(first, 4), (second, 2)]
    # Only the first of the three runs handles layers one by one, so only it prints them; all of them record them.
    (line,) = [event["why"] for event in events(folder, "chosen") if event["why"].startswith("units: ")]
    assert re.match(r"units: \d x Block \(layers.0 to layers.\d\) hold .*; other weights: embed, norm, head", line)
    assert [e["units"][0]["class"] for e in events(folder, "units")] == ["Block"] * 3
    assert sample_ids(folder) == {step: expected_ids(step) for step in range(1, STEPS + 1)}
    every = [id_ for step in range(1, STEPS + 1) for id_ in sample_ids(folder)[step]]
    for epoch in range(STEPS * BATCH // SAMPLES):
        assert sorted(every[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))
    resized, undisturbed = losses(folder), losses(straight)
    assert sorted(resized) == list(range(1, STEPS + 1))
    assert max(abs(resized[step] - undisturbed[step]) for step in undisturbed) < TOLERANCE


@pytest.mark.nightly
def test_context_ranks_continue_the_run_of_others_and_others_continue_theirs(tmp_path: Path) -> None:
    folder, straight = tmp_path / "changed", tmp_path / "straight"
    arguments = [*ARGUMENTS, f"run.folder={folder}"]
    with forked(2, [*arguments, "parallel.strategy=ddp"], tmp_path, hold=(1, 6)) as run:
        first = kill_when_held(run, folder)
    with forked(2, [*arguments, "parallel.strategy=fsdp", "parallel.context=2"], tmp_path, hold=(1, 10)) as run:
        second = kill_when_held(run, folder, after=first)
    assert main([*arguments, "parallel.strategy=single"]) == Code.FINISHED
    assert main([*ARGUMENTS, f"run.folder={straight}", "parallel.strategy=single"]) == Code.FINISHED
    assert [e["step"] for e in events(folder, "loaded")] == [first, second]
    changed, undisturbed = losses(folder), losses(straight)
    assert max(abs(changed[step] - undisturbed[step]) for step in undisturbed) < TOLERANCE


def expected_ids(step: int) -> list[int]:
    """Return the samples of a step in the order of the ranks."""
    return [int(id_) for id_ in order.sample_ids(SEED, (step - 1) * BATCH, BATCH, SAMPLES)]
