"""Every preset trains: its own family, strategy, precision, compile mode and schedule, at a size for one CPU core."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.launch import checkpoint_steps, losses, outcome
from trainer.__main__ import main
from trainer.config.load import load, presets
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
    "gpt2": ["model.vocab_size=256", "model.dim=64", "model.layers=2", "model.heads=4", "model.seq_len=32"],
    "resnet": ["model.width=8", "model.image_size=32", "model.classes=4"],
    "mlp": ["model.inputs=32", "model.hidden=[16, 16]", "model.classes=4"],
}


@pytest.mark.parametrize("preset", presets())
def test_preset_trains(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(preset, [])
    monkeypatch.chdir(tmp_path)
    if whole.data.kind == "tokens":
        Path("text.txt").write_text("A line of text, and then another.\n" * 200)
        assert prepare(["text.txt", "--out", whole.data.path, "--workers", "1"]) == 0
    words = [
        *SMALLER[whole.model.family],
        f"steps={STEPS}",
        "schedule.warmup=1",
        "batch.size=4",
        "data.samples=64",
        "data.workers=1",
        # One process cannot split a layer, and the compiler's own backend takes minutes: the capture is the same.
        "parallel.tensor=1",
        "compile.backend=eager",
        "metrics.every=1",
        "metrics.peak_tflops=1",
        "run.device=cpu",
        "run.folder=run",
    ]
    status = main([preset, *words])
    assert status == Code.FINISHED, capfd.readouterr()
    folder = tmp_path / "run"
    assert outcome(folder)["step"] == STEPS
    found = losses(folder)
    assert sorted(found) == [1, 2]
    assert all(math.isfinite(loss) for loss in found.values())
    assert checkpoint_steps(folder) == [STEPS]
    small = load(str(folder / "config.yaml"), [])
    strategy = "single" if whole.parallel.strategy == "auto" else whole.parallel.strategy
    assert small.parallel == replace(whole.parallel, strategy=strategy, tensor=1)
    assert (small.precision, small.compile.mode) == (whole.precision, whole.compile.mode)
