"""Weights and gradients in bf16 on a GPU: losses, updates, memory, resumed runs and compiled models."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.gpu_cases import make_batch, make_step
from tests.gpu.short_run import DEVICE
from tests.trainer import format_runs
from tests.trainer.test_stored_formats import DAILY, FORMATS
from trainer.config.load import load
from trainer.determinism import require_deterministic_kernels
from trainer.optimizers import adamw_kernel
from trainer.optimizers.sizes import bound_update_bytes

# 76 million weights: with 16 bytes each, much more than the activations of two short samples.
WIDE = (
    "model.dim=1024", "model.ffn=4096", "model.heads=16", "model.kv_heads=16", "model.layers=4", "model.seq_len=64",
    "model.vocab_size=4096", "batch.size=2", "parallel.strategy=single",
)  # fmt: skip
BYTES_TOLERANCE = 0.02
"""What the allocator rounds up, and the activations that outlive the backward pass, relative to the state."""


@pytest.mark.parametrize("name", FORMATS)
def test_formats_train_like_fp32(name: str) -> None:
    format_runs.check_losses(name, DEVICE)


@pytest.mark.parametrize("mode", ["blocks", "whole"])
@pytest.mark.parametrize("name", DAILY["single"])
def test_compiled_models_train_like_fp32(name: str, mode: str) -> None:
    counters.clear()
    format_runs.check_losses(name, DEVICE, f"compile.mode={mode}")
    assert counters["inductor"]
    assert not counters["graph_break"]


@pytest.mark.parametrize("has_master", [False, True])
@pytest.mark.parametrize("gradients", [torch.bfloat16, torch.float32])
def test_updates_follow_double_precision_and_use_the_kernel(has_master: bool, gradients: torch.dtype) -> None:
    with patch.object(adamw_kernel, "update_slot", wraps=adamw_kernel.update_slot) as kernel:
        format_runs.check_updates(DEVICE, has_master=has_master, gradients=gradients)
    assert kernel.call_count == 5


@pytest.mark.parametrize("has_master", [False, True])
def test_a_skipped_update_changes_nothing(has_master: bool) -> None:
    format_runs.check_skipped_update(DEVICE, has_master=has_master)


@pytest.mark.parametrize("name", ["bf16 weights", "bf16 weights, fp32 copies", "bf16 weights, moments and gradients"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    require_deterministic_kernels()
    format_runs.check_resume(name, DEVICE, tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_step_allocates_the_bytes_of_the_formats(name: str) -> None:
    config = load("tiny-llama", [*WIDE, *FORMATS[name]])
    hold_library_workspaces(name)
    start = torch.cuda.memory_allocated(DEVICE)
    step = make_step(config)
    batch = make_batch(config, 2)
    measured: dict[str, Any] = {}

    def measure() -> None:
        format_runs.check_stored_bytes(config, step)
        measured["allocated"] = torch.cuda.memory_allocated(DEVICE) - start
        torch.cuda.reset_peak_memory_stats(DEVICE)

    # The first step allocates the moments.
    step.run(batch, 1)
    step.before_update = measure
    step.run(batch, 1)
    expected = format_runs.expect_bytes(config, step)
    assert measured["allocated"] == pytest.approx(expected, rel=BYTES_TOLERANCE)
    parameters = sum(value.numel() for _, value in step.engine.named_parameters())
    bound = bound_update_bytes(parameters, config.optimizer)
    if bound is not None:
        update = torch.cuda.max_memory_allocated(DEVICE) - start - measured["allocated"]
        assert update <= bound + BYTES_TOLERANCE * expected


def hold_library_workspaces(name: str) -> None:
    """Run and drop a small step: cuBLAS allocates workspaces in it that outlive it and are no state of a run."""
    config = load("tiny-llama", [*WIDE, *FORMATS[name], "model.layers=1"])
    make_step(config).run(make_batch(config, 2), 1)
    gc.collect()
