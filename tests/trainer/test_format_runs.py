"""The runs of tests/gpu/test_stored_formats.py on the CPU, where graphs are run one operation at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.trainer import format_runs

CPU = torch.device("cpu")
STORED = ("bf16 weights", "bf16 weights, fp32 copies", "bf16 weights, fp32 gradients", "bf16 gradients")


# By day, test_compiled.py compiles models.
@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["blocks", "whole"])
@pytest.mark.parametrize("name", STORED)
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


@pytest.mark.nightly_cases("bf16 weights, fp32 copies")
@pytest.mark.parametrize("name", ["bf16 weights", "bf16 weights, fp32 copies"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    format_runs.check_resume(name, CPU, tmp_path)


@pytest.mark.parametrize("name", STORED)
def test_stored_tensors_have_the_bytes_of_their_formats(name: str) -> None:
    config = format_runs.load_formats(name)
    step = make_step(config, CPU)
    step.before_update = partial(format_runs.check_stored_bytes, config, step)
    format_runs.train(config, CPU, range(2), step)
