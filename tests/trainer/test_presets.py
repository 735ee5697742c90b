"""Every preset trains with its own strategy, precision, compile mode and schedule, at a size for one CPU core."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

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
SMALLER_LLAMA = [
    "model.vocab_size=320",
    "model.dim=64",
    "model.layers=2",
    "model.heads=4",
    "model.kv_heads=2",
    "model.ffn=128",
    "model.seq_len=32",
]
SMALLER = {
    "llama": SMALLER_LLAMA,
    "mistral": [*SMALLER_LLAMA, "model.window=8"],
    "qwen2": SMALLER_LLAMA,
    "qwen3": [*SMALLER_LLAMA, "model.head_dim=16"],
    "mixtral": [*SMALLER_LLAMA, "model.experts=4"],
    "qwen3_moe": [*SMALLER_LLAMA, "model.head_dim=16", "model.experts=4", "model.top_k=2"],
    "gpt2": ["model.vocab_size=320", "model.dim=64", "model.layers=2", "model.heads=4", "model.seq_len=32"],
    "resnet": ["model.width=8", "model.image_size=32", "model.classes=4"],
    "mlp": ["model.inputs=32", "model.hidden=[16, 16]", "model.classes=4"],
}


# By day, each kind of dense model and strategy. test_models.py builds all presets at full size and trains each family.
ON_ONE_RANK = ("demo", "gpt2-124m", "llama-70b", "mlp", "tiny-gpt2", "tiny-resnet")
# By day, quick ones; test_parallel_engines.py and test_strategy_table.py compare strategies and families.
ON_TWO_NODES = ("demo", "mlp")


def select_presets(daily: tuple[str, ...]) -> list[Any]:
    assert set(daily) <= set(list_presets())
    return [pytest.param(name, marks=() if name in daily else pytest.mark.nightly) for name in list_presets()]


@pytest.mark.parametrize("preset", select_presets(ON_ONE_RANK))
def test_preset_trains_on_one_rank(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = load(preset, [])
    monkeypatch.chdir(tmp_path)
    if original.data.kind == "tokens":
        prepare_shards(tmp_path / original.data.path)
    # A single process cannot split a layer.
    overrides = ["batch.size=4", "parallel.tensor=1", "metrics.every=1", "metrics.peak_tflops=1", "run.folder=run"]
    status = main([preset, *shrink(original), *overrides])
    assert status == Code.FINISHED, capfd.readouterr()
    folder = tmp_path / "run"
    assert outcome(folder)["step"] == STEPS
    loss_by_step = losses(folder)
    assert sorted(loss_by_step) == [1, 2]
    assert all(math.isfinite(loss) for loss in loss_by_step.values())
    assert checkpoint_steps(folder) == [STEPS]
    stored = load(str(folder / "config.yaml"), [])
    strategy = "single" if original.parallel.strategy == "auto" else original.parallel.strategy
    assert stored.parallel == replace(original.parallel, strategy=strategy, tensor=1)
    assert (stored.precision, stored.compile.mode) == (original.precision, original.compile.mode)


# The strategy auto becomes the one with the least sharding that fits.
LAYOUTS = {"ddp": Layout(replicate=2), "fsdp": Layout(shard=2), "hsdp": Layout(replicate=2, shard=2)}


@pytest.mark.parametrize("preset", select_presets(ON_TWO_NODES))
def test_preset_trains_on_two_nodes(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = load(preset, [])
    monkeypatch.chdir(tmp_path)
    tensor = min(original.parallel.tensor, 2)
    overrides = [*shrink(original), f"parallel.tensor={tensor}", "batch.size=8", f"run.folder={tmp_path / 'run'}"]
    if original.data.kind == "tokens":
        overrides.append(f"data.path={prepare_shards(tmp_path / 'shards')}")
    strategy = "ddp" if original.parallel.strategy == "auto" else original.parallel.strategy
    expected = LAYOUTS[strategy] if tensor == 1 else Layout(shard=2, tensor=2)
    results = on_ranks(
        "tests.trainer.preset_rank:train_preset",
        ranks=4 if strategy == "hsdp" or tensor > 1 else 2,
        preset=preset,
        overrides=overrides,
        folder=str(tmp_path),
        steps=3,
    )
    for result in results:
        assert result["layout"] == expected
        assert result["config"].parallel == replace(original.parallel, strategy=strategy, tensor=tensor)
        assert (result["config"].precision, result["config"].compile.mode) == (
            original.precision,
            original.compile.mode,
        )
        assert result["losses"] == results[0]["losses"]
        assert all(math.isfinite(loss) for loss in result["losses"])
        assert result["again"] == result["losses"][-1]


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
def test_tiny_presets_train_on_byte_shards(preset: str, tmp_path: Path) -> None:
    """Their vocabulary has room for bytes and the end-of-text token, so it need not be set."""
    data = ["data.kind=tokens", f"data.path={prepare_shards(tmp_path / 'shards')}", f"run.folder={tmp_path / 'run'}"]
    fast = ["steps=2", "schedule.warmup=0", "metrics.peak_tflops=1", "run.device=cpu"]
    assert main([preset, *data, *fast]) == Code.FINISHED


def shrink(config: Config) -> list[str]:
    return [
        *SMALLER[config.model.family],
        f"steps={STEPS}",
        "schedule.warmup=1",
        "data.samples=64",
        "data.workers=1",
        # The default backend takes minutes; the captured graphs are the same.
        "compile.backend=eager",
        "run.device=cpu",
    ]


def prepare_shards(folder: Path) -> Path:
    text = folder.with_suffix(".txt")
    text.write_text("A line of text, and then another.\n" * 200)
    assert prepare([str(text), "--out", str(folder), "--workers", "1"]) == 0
    return folder
