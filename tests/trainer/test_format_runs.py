"""The runs of tests/gpu/test_stored_formats.py on the CPU, where graphs are run one operation at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.trainer import format_runs
from tests.trainer.test_stored_formats import DAILY

CPU = torch.device("cpu")


COMPILED_DAILY = [("bf16 weights", "blocks")]
COMPILED_CASES = [
    pytest.param(name, mode, marks=[] if (name, mode) in COMPILED_DAILY else [pytest.mark.nightly])
    for name in DAILY
    for mode in ("blocks", "whole")
]


@pytest.mark.parametrize(("name", "mode"), COMPILED_CASES)
def test_compiled_models_train_like_fp32(name: str, mode: str) -> None:
    torch.compiler.reset()
    format_runs.check_losses(name, CPU, f"compile.mode={mode}", "compile.backend=aot_eager")


@pytest.mark.parametrize("has_master", [False, True])
@pytest.mark.parametrize("gradients", [torch.bfloat16, torch.float32])
def test_updates_follow_double_precision(has_master: bool, gradients: torch.dtype) -> None:
    format_runs.check_updates(CPU, has_master=has_master, gradients=gradients)


@pytest.mark.parametrize("has_master", [False, True])
def test_a_skipped_update_changes_nothing(has_master: bool) -> None:
    format_runs.check_skipped_update(CPU, has_master=has_master)


@pytest.mark.parametrize("name", ["bf16 weights", "bf16 weights, fp32 copies"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    format_runs.check_resume(name, CPU, tmp_path)


@pytest.mark.parametrize("name", DAILY)
def test_stored_tensors_have_the_bytes_of_their_formats(name: str) -> None:
    config = format_runs.load_formats(name)
    step = make_step(config, CPU)
    step.before_update = partial(format_runs.check_stored_bytes, config, step)
    format_runs.train(config, CPU, range(2), step)
