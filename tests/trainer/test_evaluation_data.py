"""Held-out samples: which ones they are, that training never sees them, and what is rejected."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from trainer.config.errors import ConfigError
from trainer.config.models import LlamaConfig, ResNetConfig
from trainer.config.schema import Config, DataConfig, EvaluationConfig
from trainer.data.order import Ids
from trainer.data.prepare import main as prepare
from trainer.data.registry import open_sources
from trainer.data.source import Arrays
from trainer.data.split import hold_out
from trainer.evaluation.evaluation_set import EvaluationSet, divide_samples
from trainer.models.functional import IGNORED_TARGET


@dataclass
class Numbers:
    """A data set whose samples are their own numbers."""

    sizes: tuple[int, ...]
    fingerprint = ""
    is_remote: bool = False

    @property
    def length(self) -> int:
        return sum(self.sizes)

    @property
    def group_sizes(self) -> Ids:
        return np.array(self.sizes)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        assert ids.min() >= 0
        assert ids.max() < self.length
        return {"inputs": ids, "targets": ids + (0 if epoch is None else 1000 * epoch)}


@pytest.mark.parametrize(
    ("sizes", "share", "held_out"),
    [
        ((10,), 0.2, [8, 9]),
        ((10, 20), 0.1, [9, 28, 29]),
        # Each of these shards would round to nothing on its own.
        ((2, 2, 2, 2, 2), 0.2, [3, 7]),
        ((0, 4, 0, 4), 0.25, [3, 7]),
        ((10,), 0.01, []),
        ((2,), 0.9, [0, 1]),
    ],
)
def test_the_end_of_each_group_is_held_out(sizes: tuple[int, ...], share: float, held_out: list[int]) -> None:
    training, evaluation = hold_out(Numbers(sizes), share)
    parts = [read_all(part) for part in (training, evaluation)]
    assert parts[1] == held_out
    assert sorted(parts[0] + parts[1]) == list(range(sum(sizes)))
    assert [part.length for part in (training, evaluation)] == [len(part) for part in parts]
    assert training.group_sizes.sum() == training.length


def test_parts_of_parts_and_epochs_reach_the_source() -> None:
    training, _ = hold_out(Numbers((10, 10)), 0.2)
    smaller, inner = hold_out(training, 0.25)
    assert read_all(inner) == [6, 7, 16, 17]
    assert smaller.fetch(np.array([6, 0]), 3)["targets"].tolist() == [3010, 3000]


@pytest.mark.parametrize(("limit", "batch_size", "batches"), [(0, 4, 3), (0, 10, 1), (0, 64, 1), (3, 2, 2), (99, 5, 2)])
def test_every_sample_is_evaluated_once_and_padding_is_ignored(limit: int, batch_size: int, batches: int) -> None:
    chosen = EvaluationSet(Numbers((4, 6)), limit, batch_size)
    assert (chosen.batches, chosen.length) == (batches, batches * batch_size)
    targets = chosen.fetch(np.arange(chosen.length), 7)["targets"]
    counted = targets[targets != IGNORED_TARGET]
    assert len(counted) == chosen.samples == min(limit or 10, 10)
    assert len(set(counted.tolist())) == len(counted)
    again = EvaluationSet(Numbers((4, 6)), limit, 1)
    assert sorted(again.fetch(np.arange(again.length), 0)["targets"].tolist()) == sorted(counted.tolist())


def test_samples_are_divided_by_weight_without_noise() -> None:
    total = 0.7 + 0.2 + 0.1
    assert divide_samples(10, [0.7 / total, 0.2 / total, 0.1 / total]) == [7, 2, 1]
    assert divide_samples(10, [2 / 3, 1 / 3]) == [7, 4]
    assert divide_samples(10, [1 - 1e-9, 1e-9]) == [10, 1]
    assert divide_samples(0, [0.5, 0.5]) == [0, 0]


def test_padding_does_not_change_inputs_that_share_memory_with_targets(tmp_path: Path) -> None:
    source = open_sources(tokens(make_shards(tmp_path))).training
    padded = EvaluationSet(source, 1, 4).fetch(np.arange(4), 0)
    assert (padded["targets"][1:] == IGNORED_TARGET).all()
    assert (padded["inputs"] >= 0).all()


def test_images_are_evaluated_without_random_crops(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(4):
            # A bright frame of 4 pixels around a dark centre: only a crop of the centre is all dark.
            image = np.full((64, 64, 3), 200, np.uint8)
            image[4:60, 4:60] = 10 * number
            np.save(tmp_path / name / f"{number}.npy", image)
    sources = open_sources(
        Config(
            name="test",
            model=ResNetConfig(image_size=16, classes=2),
            data=DataConfig(kind="images", path=str(tmp_path)),
            evaluation=EvaluationConfig(share=0.25),
        )
    )
    assert sources.evaluation is not None
    batch = EvaluationSet(sources.evaluation, 0, 2).fetch(np.arange(2), 0)
    assert batch["targets"].tolist() == [0, 1]
    assert (batch["inputs"] == 30).all()
    assert sources.training.length == 6


def test_the_fingerprint_changes_with_the_shards(tmp_path: Path) -> None:
    first, second = make_shards(tmp_path, "first", "xy"), make_shards(tmp_path, "second", "xz")
    shutil.copytree(first, tmp_path / "copy")
    prints = [open_sources(tokens(path)).training.fingerprint for path in (first, second, str(tmp_path / "copy"))]
    assert prints[0] == prints[2] != prints[1]
    assert open_sources(tokens(first, EvaluationConfig(share=0.5))).training.fingerprint == prints[0]


def test_a_share_that_holds_out_nothing_is_rejected(tmp_path: Path) -> None:
    path = make_shards(tmp_path)
    with pytest.raises(ConfigError, match=r"evaluation.share: 0.001 of 25 samples leaves none to evaluate on; use a"):
        open_sources(tokens(path, EvaluationConfig(share=0.001)))
    with pytest.raises(ConfigError, match=r"evaluation.share: 0.99 of 25 samples leaves none to train on; use a small"):
        open_sources(tokens(path, EvaluationConfig(share=0.99)))


def test_errors_of_the_evaluation_folder_name_its_setting(tmp_path: Path) -> None:
    path = make_shards(tmp_path)
    with pytest.raises(ConfigError, match=r"^evaluation.path: there is no folder .*nowhere; make it: python"):
        open_sources(tokens(path, EvaluationConfig(path=str(tmp_path / "nowhere"))))
    short = make_shards(tmp_path, "short", "x", repeat=1)
    with pytest.raises(ConfigError, match=r"^evaluation.path: no shard of .* has the 9 tokens of a sample"):
        open_sources(tokens(path, EvaluationConfig(path=short)))


def read_all(source: object) -> list[int]:
    part: Numbers = source  # type: ignore[assignment]  # every open source has this type here
    return part.fetch(np.arange(part.length), None)["inputs"].tolist() if part.length else []


def make_shards(folder: Path, name: str = "shards", text: str = "some text ", repeat: int = 20) -> str:
    (folder / f"{name}.txt").write_text(text * repeat)
    assert prepare([str(folder / f"{name}.txt"), "--out", str(folder / name), "--workers", "1"]) == 0
    return str(folder / name)


def tokens(path: str, evaluation: EvaluationConfig | None = None) -> Config:
    return Config(
        name="test",
        model=LlamaConfig(vocab_size=512, seq_len=8),
        data=DataConfig(kind="tokens", path=path),
        evaluation=evaluation or EvaluationConfig(),
    )
