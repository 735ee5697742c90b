"""Whole runs with bf16 weights: killed, resumed with other formats, evaluated and exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, digests, losses
from trainer import safetensors_file
from trainer.__main__ import main
from trainer.life.outcome import Code

BF16 = ("precision=bf16", "optimizer.weights=bf16", "optimizer.gradients=bf16", "parallel.strategy=single")
MASTER = "optimizer.master=true"


@pytest.mark.nightly_cases("more0")
@pytest.mark.parametrize("more", [(), (MASTER,)])
def test_a_run_in_two_parts_is_evaluated_and_exported_in_its_format(
    more: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [*SMALL_LLAMA, *BF16, *more, "schedule.kind=constant", "checkpoint.every=2", "evaluation.share=0.1"]
    settings += ["evaluation.every=2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*settings, f"run.folder={whole}", "steps=4"]) == Code.FINISHED, capfd.readouterr().err
    for steps in (2, 4):
        assert main([*settings, f"run.folder={parts}", f"steps={steps}"]) == Code.FINISHED
    assert losses(parts) == losses(whole)
    shard = "shard-00000.safetensors"
    assert digests(parts, 4)[shard] == digests(whole, 4)[shard]
    assert main(["evaluate", str(whole)]) == 0, capfd.readouterr().err
    assert main(["export", str(whole), str(tmp_path / "out")]) == 0
    reader = safetensors_file.Reader(tmp_path / "out" / "model.safetensors")
    assert str(reader["lm_head.weight"].dtype) == ("torch.float32" if more else "torch.bfloat16")


def test_the_log_says_that_weights_were_converted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [*SMALL_LLAMA, "precision=bf16", "parallel.strategy=single", f"run.folder={tmp_path / 'run'}"]
    assert main([*settings, "steps=2", *BF16, MASTER]) == Code.FINISHED
    assert main([*settings, "steps=4"]) == Code.FINISHED
    out = capfd.readouterr().out
    text = "weights were converted: the checkpoint has bf16 with fp32 copies, and this run stores fp32"
    assert text in out.splitlines()
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3, 4]
    start = ["run.folder=" + str(tmp_path / "next"), f"checkpoint.initial={tmp_path / 'run'}"]
    assert main([*settings, *start, "steps=1", *BF16, MASTER]) == Code.FINISHED, capfd.readouterr().err
