"""Every preset trains on the GPU with its own precision, strategy and compiler backend."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.launch import checkpoint_steps, losses, outcome
from tests.trainer.test_presets import SMALLER
from trainer.__main__ import main
from trainer.config.load import list_presets, load
from trainer.data.prepare import main as prepare
from trainer.life.outcome import Code

STEPS = 3


@pytest.mark.parametrize("preset", list_presets())
def test_preset_trains(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(preset, [])
    monkeypatch.chdir(tmp_path)
    if whole.data.kind == "tokens":
        Path("text.txt").write_text("A line of text, and then another.\n" * 200)
        assert prepare(["text.txt", "--out", whole.data.path, "--workers", "1"]) == 0
    arguments = [
        *SMALLER[whole.model.family],
        f"steps={STEPS}",
        "schedule.warmup=1",
        "batch.size=4",
        "data.samples=64",
        "data.workers=1",
        # One GPU cannot split a layer.
        "parallel.tensor=1",
        "metrics.every=1",
        "run.device=cuda",
        "run.folder=run",
    ]
    status = main([preset, *arguments])
    assert status == Code.FINISHED, capfd.readouterr()
    folder = tmp_path / "run"
    assert outcome(folder)["step"] == STEPS
    by_step = losses(folder)
    assert sorted(by_step) == list(range(1, STEPS + 1))
    assert all(math.isfinite(loss) for loss in by_step.values())
    assert checkpoint_steps(folder) == [STEPS]
    small = load(str(folder / "config.yaml"), [])
    strategy = "single" if whole.parallel.strategy == "auto" else whole.parallel.strategy
    assert small.parallel == replace(whole.parallel, strategy=strategy, tensor=1)
    assert (small.precision, small.compile) == (whole.precision, whole.compile)
