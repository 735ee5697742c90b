"""Every preset trains: its own family, strategy, precision, compile mode and schedule, at a size for a CPU core."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.launch import checkpoint_steps, losses, outcome
from tests.trainer.ranks import on_ranks
from trainer.__main__ import main
from trainer.config.layout import Layout
from trainer.config.load import list_presets, load
from trainer.config.schema import Config
from trainer.data.prepare import main as prepare
from trainer.life.outcome import Code

STEPS = 2
SMALLER = {
    "llama": [
        "model.vocab_size=320",
        "model.dim=64",
        "model.layers=2",
        "model.heads=4",
        "model.kv_heads=2",
        "model.ffn=128",
        "model.seq_len=32",
    ],
    "gpt2": ["model.vocab_size=320", "model.dim=64", "model.layers=2", "model.heads=4", "model.seq_len=32"],
    "resnet": ["model.width=8", "model.image_size=32", "model.classes=4"],
    "mlp": ["model.inputs=32", "model.hidden=[16, 16]", "model.classes=4"],
}


@pytest.mark.parametrize("preset", list_presets())
def test_preset_trains(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(preset, [])
    monkeypatch.chdir(tmp_path)
    if whole.data.kind == "tokens":
        prepared(tmp_path / whole.data.path)
    # One process cannot split a layer.
    words = ["batch.size=4", "parallel.tensor=1", "metrics.every=1", "metrics.peak_tflops=1", "run.folder=run"]
    status = main([preset, *small(whole), *words])
    assert status == Code.FINISHED, capfd.readouterr()
    folder = tmp_path / "run"
    assert outcome(folder)["step"] == STEPS
    found = losses(folder)
    assert sorted(found) == [1, 2]
    assert all(math.isfinite(loss) for loss in found.values())
    assert checkpoint_steps(folder) == [STEPS]
    found_config = load(str(folder / "config.yaml"), [])
    strategy = "single" if whole.parallel.strategy == "auto" else whole.parallel.strategy
    assert found_config.parallel == replace(whole.parallel, strategy=strategy, tensor=1)
    assert (found_config.precision, found_config.compile.mode) == (whole.precision, whole.compile.mode)


# Nodes of two ranks, two of them. A strategy that is left open becomes the one that fits with the least sharding.
LAYOUTS = {"ddp": Layout(replicate=4), "fsdp": Layout(shard=4), "hsdp": Layout(replicate=2, shard=2)}


@pytest.mark.parametrize("preset", list_presets())
def test_preset_trains_on_the_ranks_it_is_made_for(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(preset, [])
    monkeypatch.chdir(tmp_path)
    tensor = min(whole.parallel.tensor, 2)
    words = [*small(whole), f"parallel.tensor={tensor}", "batch.size=8", f"run.folder={tmp_path / 'run'}"]
    if whole.data.kind == "tokens":
        words.append(f"data.path={prepared(tmp_path / 'shards')}")
    found = on_ranks(
        "tests.trainer.preset_rank:train_preset", preset=preset, words=words, folder=str(tmp_path), steps=3
    )
    strategy = "ddp" if whole.parallel.strategy == "auto" else whole.parallel.strategy
    expected = LAYOUTS[strategy] if tensor == 1 else Layout(shard=2, tensor=2)
    for rank in found:
        assert rank["layout"] == expected
        assert rank["config"].parallel == replace(whole.parallel, strategy=strategy, tensor=tensor)
        assert (rank["config"].precision, rank["config"].compile.mode) == (whole.precision, whole.compile.mode)
        assert rank["losses"] == found[0]["losses"]
        assert all(math.isfinite(loss) for loss in rank["losses"])
        assert rank["again"] == rank["losses"][-1]


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
def test_small_presets_take_the_shards_that_prepare_makes(preset: str, tmp_path: Path) -> None:
    """Bytes and the mark between documents, without a word about the vocabulary."""
    words = ["data.kind=tokens", f"data.path={prepared(tmp_path / 'shards')}", f"run.folder={tmp_path / 'run'}"]
    fast = ["steps=2", "schedule.warmup=0", "metrics.peak_tflops=1", "run.device=cpu"]
    assert main([preset, *words, *fast]) == Code.FINISHED


def small(whole: Config) -> list[str]:
    return [
        *SMALLER[whole.model.family],
        f"steps={STEPS}",
        "schedule.warmup=1",
        "data.samples=64",
        "data.workers=1",
        # The compiler's own backend takes minutes: the capture is the same.
        "compile.backend=eager",
        "run.device=cpu",
    ]


def prepared(folder: Path) -> Path:
    text = folder.with_suffix(".txt")
    text.write_text("A line of text, and then another.\n" * 200)
    assert prepare([str(text), "--out", str(folder), "--workers", "1"]) == 0
    return folder
