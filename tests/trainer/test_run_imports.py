"""Training imports only torch, numpy and pyyaml; other packages are imported only for data that needs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.trainer.launch import SMALL_LLAMA, alone, assert_finished
from trainer.data.prepare import main as prepare

OPTIONAL = {"PIL", "tokenizers", "transformers", "safetensors", "tensorboard", "matplotlib", "rich", "huggingface_hub"}
RESNET = ("tiny-resnet", "data.kind=images", "metrics.peak_tflops=1", "run.device=cpu", "batch.size=4")


def test_training_on_text_does_not_import_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("a b a a b c\n" * 200)
    arguments = [str(tmp_path / "text.txt"), "--out", str(tmp_path / "shards"), "--workers", "1"]
    assert prepare([*arguments, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    arguments = [*SMALL_LLAMA, "metrics.tensorboard=true", "data.kind=tokens", f"data.path={tmp_path / 'shards'}"]
    assert list_imported(arguments, tmp_path) == set()


@pytest.mark.parametrize(("kind", "expected"), [("npy", set()), ("png", {"PIL"})])
def test_pillow_is_imported_only_for_folders_that_need_it(kind: str, expected: set[str], tmp_path: Path) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    for name in ("cats", "dogs"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(4):
            if kind == "npy":
                np.save(folder / f"{number}.npy", pixels)
            else:
                Image.fromarray(pixels).save(folder / f"{number}.png")
    assert list_imported([*RESNET, f"data.path={tmp_path / 'images'}"], tmp_path) == expected


def list_imported(arguments: list[str], tmp_path: Path) -> set[str]:
    """Run the trainer and return the optional packages it imported."""
    arguments = [*arguments, "steps=2", "schedule.warmup=0", f"run.folder={tmp_path / 'run'}"]
    with alone(arguments, tmp_path, program="tests.trainer.list_imports") as run:
        assert_finished(run)
    return OPTIONAL & set(json.loads(run.output.splitlines()[-1]))
