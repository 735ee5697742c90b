"""The tokenizer of a run is copied to the folder that is exported from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainer.config.load import load
from trainer.config.schema import CheckpointConfig, Config, DataConfig
from trainer.tokenizer_files import copy_tokenizer


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of shards with the tokenizer that `prepare` stores."""
    return write(tmp_path / "shards", "tokenizer.json", "tokenizer_config.json", "index.json")


def test_the_folder_of_the_initial_weights_comes_first(shards: Path, tmp_path: Path) -> None:
    initial = write(tmp_path / "initial", "tokenizer.json", "chat_template.jinja", "model.safetensors", "config.json")
    out = write(tmp_path / "out", "config.json")
    config = make_config(CheckpointConfig(initial=str(initial)), DataConfig(kind="tokens", path=str(shards)))
    assert copy_tokenizer(config, out) == initial
    assert sorted(path.name for path in out.iterdir()) == ["chat_template.jinja", "config.json", "tokenizer.json"]
    assert (out / "config.json").read_text() == "config.json of out"


@pytest.mark.parametrize("is_mixture", [False, True])
def test_otherwise_it_is_that_of_the_data_and_files_are_never_replaced(
    is_mixture: bool, shards: Path, tmp_path: Path
) -> None:
    # A run folder has no tokenizer.
    checkpoint = CheckpointConfig(initial=str(write(tmp_path / "run", "config.yaml")))
    data = {"mixture": (f"{tmp_path}/none=1", f"{shards}=1")} if is_mixture else {"path": str(shards)}
    out = write(tmp_path / "out", "tokenizer_config.json")
    assert copy_tokenizer(make_config(checkpoint, DataConfig(kind="tokens", **data)), out) == shards
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "tokenizer.json": "tokenizer.json of shards",
        "tokenizer_config.json": "tokenizer_config.json of out",
    }


def test_without_a_tokenizer_nothing_is_copied(tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    assert copy_tokenizer(make_config(CheckpointConfig(), DataConfig()), out) is None
    # Settings of text generation alone are no tokenizer.
    bytes_only = write(tmp_path / "bytes", "index.json", "generation_config.json")
    assert copy_tokenizer(make_config(CheckpointConfig(), DataConfig(kind="tokens", path=str(bytes_only))), out) is None
    assert list(out.iterdir()) == []


def make_config(checkpoint: CheckpointConfig, data: DataConfig) -> Config:
    return replace(load("tiny-llama", []), checkpoint=checkpoint, data=data)


def write(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"{name} of {folder.name}")
    return folder
