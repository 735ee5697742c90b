"""A run is resumed in another precision: only fp16 has a loss scale, so it may be missing or superfluous."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, events, losses
from trainer.__main__ import main
from trainer.life.outcome import Code


@pytest.mark.nightly
def test_the_precision_may_change_on_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = [*SMALL_LLAMA, "parallel.strategy=single", f"run.folder={folder}"]
    for steps, precision in ((2, "fp16"), (4, "bf16"), (6, "fp16"), (8, "fp16")):
        status = main([*arguments, f"steps={steps}", f"precision={precision}"])
        assert status == Code.FINISHED, capfd.readouterr().err
    assert [event["step"] for event in events(folder, "loaded")] == [2, 4, 6]
    assert "changed since the checkpoint: precision: fp16 -> bf16" in capfd.readouterr().out
    assert sorted(losses(folder)) == list(range(1, 9))
