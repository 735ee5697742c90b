"""A resumed run compares its data with the checkpoint's: by content, not by place or size."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.launch import SMALL_LLAMA, events
from tests.trainer.token_shards import write_shards
from trainer.__main__ import main
from trainer.life.outcome import Code

TOKENS = 400
SETTINGS = [*SMALL_LLAMA, "data.kind=tokens", "batch.size=4", "parallel.strategy=single"]


def train(folder: Path, shards: Path, steps: int, *more: str) -> None:
    settings = [f"data.path={shards}", f"steps={steps}", f"run.folder={folder}", *more]
    assert main([*SETTINGS, *settings]) == Code.FINISHED


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """Return the folder of a run of one step on `tmp_path / "shards"`."""
    write_shards(tmp_path / "shards", np.arange(TOKENS) % 90)
    train(tmp_path / "run", tmp_path / "shards", 1)
    return tmp_path / "run"


def test_other_tokens_in_the_same_number_are_reported(
    started: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same number of samples, the same file names and sizes: only the checksums differ."""
    shutil.rmtree(tmp_path / "shards")
    write_shards(tmp_path / "shards", (np.arange(TOKENS) + 1) % 90)
    train(started, tmp_path / "shards", 2)
    output = capfd.readouterr().out
    assert re.search(r"DATA CHANGED since the checkpoint: content [0-9a-f]+ then, [0-9a-f]+ now\n", output)
    assert len(events(started, "data_changed")) == 1


def test_another_seed_is_reported(started: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(started, tmp_path / "shards", 2, "run.seed=2")
    assert "DATA CHANGED since the checkpoint: seed 1 then, 2 now\n" in capfd.readouterr().out


def test_shards_may_be_moved(started: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shards").rename(tmp_path / "elsewhere")
    train(started, tmp_path / "elsewhere", 2)
    assert "DATA CHANGED" not in capfd.readouterr().out
    assert events(started, "data_changed") == []


def test_a_renamed_image_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Another name is another place in the order of the samples."""
    images, run = tmp_path / "images", tmp_path / "run"
    for name in ("cat", "dog"):
        (images / name).mkdir(parents=True)
        for number in range(4):
            np.save(images / name / f"{number}.npy", np.full((16, 16, 3), 10 * number, np.uint8))
    settings = ["tiny-resnet", "data.kind=images", f"data.path={images}", "batch.size=4", "parallel.strategy=single"]
    settings += ["model.classes=2", "run.device=cpu", "metrics.peak_tflops=1", f"run.folder={run}"]
    assert main([*settings, "steps=1"]) == Code.FINISHED
    (images / "cat" / "0.npy").rename(images / "cat" / "9.npy")
    assert main([*settings, "steps=2"]) == Code.FINISHED
    assert re.search(r"DATA CHANGED since the checkpoint: content \w+ then, \w+ now\n", capfd.readouterr().out)
