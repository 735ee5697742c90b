"""An error on one rank ends the run at once and is reported, even if the other rank does not see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import losses, outcome, torchrun
from trainer.data import order
from trainer.life.cause import Cause

SAMPLES, BATCH, STEP = 64, 8, 5


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
