"""Samples from token shards, and the messages for folders that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.token_shards import write_shards
from trainer.config.errors import ConfigError
from trainer.config.models import LlamaConfig
from trainer.config.schema import Config, DataConfig
from trainer.data.loader import Loader
from trainer.data.registry import open_source


def open_folder(folder: Path, seq_len=4, vocab_size=100):
    data = DataConfig(kind="tokens", path=str(folder), seq_len=seq_len)
    return open_source(Config(name="test", model=LlamaConfig(vocab_size=vocab_size, seq_len=64), data=data))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_windows_overlap_by_one_token_and_stay_in_their_shard(tmp_path, dtype):
    source = open_folder(write_shards(tmp_path / "d", range(13), range(20, 24), range(30, 39), dtype=dtype))
    assert source.length == 3 + 0 + 2
    batch = source.fetch(np.array([4, 0, 1, 2, 3]), 0)
    assert batch["inputs"].tolist() == [[34, 35, 36, 37], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [30, 31, 32, 33]]
    assert batch["targets"].tolist() == [
        [35, 36, 37, 38],
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
        [31, 32, 33, 34],
    ]
    assert batch["inputs"].dtype == batch["targets"].dtype == np.int64


def test_an_empty_shard_is_skipped(tmp_path):
    source = open_folder(write_shards(tmp_path / "d", [], range(5)))
    assert source.fetch(np.array([0]), 0)["inputs"].tolist() == [[0, 1, 2, 3]]


def test_the_loader_yields_every_token_as_a_target_once(tmp_path):
    source = open_folder(write_shards(tmp_path / "d", range(41), range(41, 82)))
    loader = Loader(source, 3, 5)
    batches = [next(loader) for _ in range(source.length // 5)]
    loader.close()
    targets = np.concatenate([batch.tensors["targets"].numpy().ravel() for batch in batches])
    assert sorted(targets.tolist()) == [*range(1, 41), *range(42, 82)]


def _remove_index(folder):
    (folder / "index.json").unlink()


def _remove_all(folder):
    for file in folder.iterdir():
        file.unlink()


def _truncate_shard(folder):
    with (folder / "shard-00001.bin").open("r+b") as file:
        file.truncate(10)


def _remove_shard(folder):
    (folder / "shard-00000.bin").unlink()


def _raise_version(folder):
    raw = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(raw | {"version": 2}))


def _truncate_index(folder):
    (folder / "index.json").write_text('{"version": 1, "dty')


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _remove_index,
            "has shards but no index.json: its preparation did not finish; run (again): python -m trainer prepare",
        ),
        (_remove_all, "is empty; run (again): python -m trainer prepare"),
        (_truncate_shard, "shard-00001.bin has 10 bytes instead of 40; copy it again, or prepare the folder again"),
        (_remove_shard, "shard-00000.bin is missing; prepare the folder again"),
        (_raise_version, "is not a valid index of token shards, version 1 (its version is 2)"),
        (_truncate_index, "is not a valid index of token shards, version 1 (Unterminated string"),
    ],
)
def test_a_damaged_folder_is_rejected(tmp_path, damage, message):
    folder = write_shards(tmp_path / "d", range(20), range(20))
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        open_folder(folder)
    assert str(caught.value).startswith("data.path: ")
    assert message in str(caught.value)


def test_a_missing_folder_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no folder .*x; make it: python -m trainer prepare INPUT"):
        open_folder(tmp_path / "x")


def test_a_larger_vocabulary_than_the_models_is_rejected(tmp_path):
    folder = write_shards(tmp_path / "d", range(20), vocab_size=128)
    with pytest.raises(
        ConfigError, match="tokenizer bytes, whose vocabulary of 128 is larger than the model's 100"
    ) as caught:
        open_folder(folder)
    assert "set model.vocab_size to 128 or more" in caught.value.problems[0].fix


def test_a_shard_with_a_token_outside_the_vocabulary_is_rejected(tmp_path):
    folder = write_shards(tmp_path / "d", range(20), [5, 300, 5, 5, 5, 5])
    with pytest.raises(ConfigError, match=r"shard-00001.bin contains token 300, but the model's vocabulary ends at 99"):
        open_folder(folder)


def test_too_little_text_for_a_sample_is_rejected(tmp_path):
    folder = write_shards(tmp_path / "d", range(4), range(3))
    with pytest.raises(ConfigError, match="the 5 tokens of a sample; the longest has 4; prepare more text"):
        open_folder(folder)


def test_all_problems_are_reported_at_once(tmp_path):
    folder = write_shards(tmp_path / "d", range(20), range(20), vocab_size=128)
    _truncate_shard(folder)
    _remove_shard(folder)
    with pytest.raises(ConfigError) as caught:
        open_folder(folder)
    assert len(caught.value.problems) == 3
