"""The benchmark of loss curves trains a preset on text and evaluates it on text that it does not train on."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.loss_curves import Way, measure_run
from trainer.__main__ import main as train
from trainer.config.load import load

STEPS = 3


def test_a_run_returns_the_loss_of_each_step_and_of_text_that_is_held_out(tmp_path: Path) -> None:
    text, tokens, folder = tmp_path / "text.txt", tmp_path / "tokens", tmp_path / "run"
    text.write_text("".join(f"{number} times {number} is {number**2}\n" for number in range(2000)))
    assert train(["prepare", str(text), "--out", str(tokens)]) == 0
    small = Way(("data.seq_len=16", "evaluation.samples=32"))
    run = measure_run("tiny-llama", small, argparse.Namespace(steps=STEPS, rate=0.5), tokens, folder)
    assert len(run.losses) == STEPS
    assert all(loss > 0 for loss in [*run.losses, run.held_out])
    assert load(str(folder / "config.yaml"), []).optimizer.lr == pytest.approx(load("tiny-llama", []).optimizer.lr / 2)
