"""An error on one rank ends the run at once and is reported, even if the other rank does not see it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import (
    SMALL_LLAMA,
    assert_finished,
    checkpoint_steps,
    events,
    forked,
    losses,
    outcome,
    sample_ids,
    torchrun,
)
from tests.trainer.token_shards import write_shards
from trainer.data import order
from trainer.life.cause import Cause
from trainer.life.outcome import Code

SAMPLES, BATCH, STEP = 64, 8, 5
TOKENS, SHORT_BYTES, SEED = 1_000_001, 4096, 7


@pytest.mark.nightly
@pytest.mark.fault(37)
def test_a_bad_file_on_one_rank_ends_the_run(tmp_path: Path) -> None:
    images, folder = tmp_path / "images", tmp_path / "run"
    files = [images / f"class-{number % 2}" / f"{number:03d}.npy" for number in range(SAMPLES)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.full((40, 40, 3), len(file.name), np.uint8))
    # The last sample of a step belongs to the last rank.
    last = int(order.sample_ids(1, STEP * BATCH - 1, 1, SAMPLES)[0])
    bad = sorted(files)[last]
    bad.write_bytes(b"no picture")
    folder.mkdir()
    (folder / "outcome.json").write_text(
        '{"outcome": "requeue", "reason": "of an earlier start", "step": 1, "time": 0}'
    )

    arguments = ["tiny-resnet", "data.kind=images", f"data.path={images}", f"batch.size={BATCH}", "batch.micro=4"]
    arguments += ["parallel.strategy=ddp", "metrics.every=1", "metrics.peak_tflops=1", "run.device=cpu"]
    with torchrun(2, [*arguments, "steps=1000", f"run.folder={folder}"], tmp_path) as run:
        # Much less than the time that ranks wait for each other, which is an hour.
        assert run.wait() == 1, run.output
    assert f"data.path: {bad} cannot be decoded (" in run.output
    assert outcome(folder)["outcome"] == "bad_input"
    assert str(bad) in outcome(folder)["reason"]
    assert_first_cause(folder, Cause.DATA, rank=1)
    # torchrun compares whole seconds: if rank 0 misses its peer within the same one, both are named, in either order.
    summary = run.output[run.output.index("Failures:") :]
    assert "rank      : 1" in summary, "torchrun names the same rank"
    assert str(bad) in summary
    assert max(losses(folder)) < STEP


@pytest.mark.fault(37)
def test_a_shard_that_becomes_shorter_ends_the_run_which_resumes_at_the_same_sample(tmp_path: Path) -> None:
    """A rank that reads a mapped file behind its end would be killed without a word, again and again."""
    shards = write_shards(tmp_path / "shards", np.arange(TOKENS) % 100)
    folder, shard = tmp_path / "run", shards / "shard-00000.bin"
    whole = shard.read_bytes()
    arguments = [*SMALL_LLAMA, "data.kind=tokens", f"data.path={shards}", f"batch.size={BATCH}", f"run.seed={SEED}"]
    arguments += ["checkpoint.every=5", "metrics.sample_ids=true", "parallel.strategy=ddp", f"run.folder={folder}"]
    with forked(2, [*arguments, "steps=1000000"], tmp_path) as run:
        run.until(lambda: checkpoint_steps(folder) != [], "a checkpoint")
        os.truncate(shard, SHORT_BYTES)
        assert run.wait() == Code.BAD_INPUT, run.output
    ended = outcome(folder)
    assert ended["outcome"] == "bad_input"
    pattern = f"{shard} became shorter while it was in use: it has {SHORT_BYTES} bytes instead of {2 * TOKENS}, and "
    assert re.search(re.escape(pattern) + r"the next read needs values \d+ to \d+, which end at byte", ended["reason"])

    shard.write_bytes(whole)
    saved = checkpoint_steps(folder)[-1]
    with forked(2, [*arguments, f"steps={saved + 3}"], tmp_path) as run:
        assert_finished(run)
    assert [event["step"] for event in events(folder, "loaded")] == [saved]
    samples, epoch = (TOKENS - 1) // 16, (saved + 3) * BATCH
    assert epoch < samples
    expected = order.sample_ids(SEED, 0, epoch, samples).reshape(-1, BATCH).tolist()
    assert sample_ids(folder) == dict(enumerate(expected, start=1))
