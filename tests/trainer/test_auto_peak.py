"""The predicted peak memory of a step with one micro-batch on one GPU, against what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainer.auto import measure
from trainer.auto.choose import GIB, _estimate
from trainer.auto.memory import estimate_memory
from trainer.auto.sizes import ModelSizes
from trainer.config.layout import Layout
from trainer.config.load import load
from trainer.config.schema import ParallelConfig

MEASURED_GIB = 96.9
"""Of `llama-3b` at sequence 32,768 on one H200 (docs/performance.md)."""
# 8 blocks of 100 weights each, and activations that take more than gradients.
SIZES = ModelSizes(1000, 1000, 100, 8000, 40, 8, 80_000, 1000, 6000, 40)
SINGLE = ParallelConfig(strategy="single")


def test_the_peak_of_a_long_sequence_is_predicted_within_5_percent() -> None:
    long = ["parallel.strategy=single", "parallel.recompute=selective", "model.seq_len=32768", "batch.size=1"]
    config = load("llama-3b", [*long, "batch.micro=1"])
    sizes = measure.measure_sizes(config, {"inputs": torch.zeros(1, 32_768, dtype=torch.int64)}, "cpu")
    need = _estimate(config, sizes, config.parallel, Layout(), 1)
    assert need.total / GIB == pytest.approx(MEASURED_GIB, rel=0.05), need


def test_gradients_take_the_place_of_activations_unless_there_are_more_micro_batches() -> None:
    with_two, alone = (estimate_memory(SIZES, SINGLE, Layout(), "fp32", 1, count) for count in (2, 1))
    assert (with_two.gradients, alone.gradients) == (4000, 0)
    # At the end of the backward pass there are all gradients, and the activations of a block.
    few = replace(SIZES, activations=800)
    need = estimate_memory(few, SINGLE, Layout(), "fp32", 1)
    assert need.gradients + need.activations == 4000 + 800 // 8


def test_compiled_blocks_that_are_recomputed_copy_their_weights_again_and_store_no_last_product() -> None:
    sizes, selective = replace(SIZES, block_last_product=500), replace(SINGLE, recompute="selective")
    eager, compiled = (
        estimate_memory(sizes, selective, Layout(), "bf16", 1, compiles=compiles) for compiles in (False, True)
    )
    assert (eager.gathered, compiled.gathered) == (2 * 1000, 2 * (1000 - 7 * 100))
    assert eager.activations - compiled.activations == 8 * 500
    undivided = replace(sizes, largest_block=1000)
    assert estimate_memory(undivided, selective, Layout(), "bf16", 1, compiles=True).gathered == 2 * 1000
    stored = estimate_memory(sizes, SINGLE, Layout(), "bf16", 1, compiles=True)
    assert stored.gathered == 2 * 1000
