"""The memory of a rank follows from the sizes of a model and the layout of the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.round_sizes import SIZES
from trainer.auto import measure
from trainer.auto.choose import GIB
from trainer.auto.memory import MemoryNeed, estimate_memory
from trainer.auto.sizes import (
    ModelSizes,
    bound_sizes,
    count_outputs_at_once,
)
from trainer.config.communication import CommunicationConfig
from trainer.config.layout import Layout, resolve_layout
from trainer.config.load import load
from trainer.config.models import LlamaConfig
from trainer.config.schema import ParallelConfig


def test_expert_parallelism_divides_only_the_experts() -> None:
    """Half of the weights are experts; under fsdp, ranks store as much as before but gather fewer experts."""
    sizes = replace(SIZES, experts=GIB // 4)
    for strategy, layout in (("ddp", Layout(replicate=8)), ("fsdp", Layout(shard=8))):
        parallel = ParallelConfig(strategy=strategy, expert=4)
        whole, spread = (
            estimate_memory(sizes, parallel, replace(layout, expert=expert), "fp32", 1) for expert in (1, 4)
        )
        if strategy == "ddp":
            assert spread.weights == spread.gradients == whole.weights * 5 // 8
            assert spread.states == whole.states * 5 // 8
        else:
            assert (spread.weights, spread.states) == (whole.weights, whole.states)
            assert spread.gathered < whole.gathered
        assert spread.activations == whole.activations


def test_frozen_experts_have_no_gradients() -> None:
    sizes = replace(SIZES, experts=GIB // 4, trainable=SIZES.parameters // 64)
    whole, spread = (
        estimate_memory(sizes, ParallelConfig(strategy="ddp"), Layout(replicate=8, expert=expert), "fp32", 1)
        for expert in (1, 4)
    )
    assert spread.gradients == whole.gradients * 5 // 8


@pytest.mark.parametrize(
    ("communication", "size"),
    [
        # The residual and the moving average, and the new values of both until the step ends.
        (CommunicationConfig(compression="topk"), 16),
        (CommunicationConfig(compression="topk", smoothing=0.0), 8),
        (CommunicationConfig(compression="randomk"), 8),
        (CommunicationConfig(compression="powersgd"), 8),
    ],
    ids=["topk", "topk, not smoothed", "randomk", "powersgd"],
)
def test_what_compression_stores_takes_these_bytes_per_trained_parameter(
    communication: CommunicationConfig, size: int
) -> None:
    frozen = replace(SIZES, trainable=SIZES.parameters // 4)

    def estimate(parallel: ParallelConfig, layout: Layout, communication: CommunicationConfig) -> MemoryNeed:
        return estimate_memory(frozen, parallel, layout, "bf16", 1, communication=communication)

    ddp, hsdp = ParallelConfig(strategy="ddp"), ParallelConfig(strategy="hsdp", shard=4)
    cases = [
        (ddp, Layout(replicate=8), size * frozen.trainable),
        (ddp, Layout(context=8), size * frozen.trainable),
        (hsdp, Layout(replicate=2, shard=4), size // 4 * frozen.trainable),
        # There is no other copy of the model, so nothing is compressed.
        (ddp, Layout(), 0),
    ]
    for parallel, layout, expected in cases:
        int8 = CommunicationConfig(compression="int8")
        with_residual, without = (estimate(parallel, layout, settings) for settings in (communication, int8))
        assert (with_residual.residuals, without.residuals) == (expected, 0)
        assert with_residual.total - without.total == expected


def test_local_steps_store_shared_weights_and_their_momentum() -> None:
    frozen, hsdp = replace(SIZES, trainable=SIZES.parameters // 4), ParallelConfig(strategy="hsdp", shard=4)
    local = CommunicationConfig(inner_steps=50)
    for parallel, layout, size in (
        (ParallelConfig(strategy="ddp"), Layout(replicate=8), 8),
        (ParallelConfig(strategy="ddp"), Layout(), 8),
        (hsdp, Layout(replicate=2, shard=4), 2),
    ):
        need = estimate_memory(frozen, parallel, layout, "bf16", 1, communication=local)
        assert need.residuals == size * frozen.trainable


def test_pipeline_stages_hold_whole_weights_and_gradients_for_a_step() -> None:
    """Only optimizer state and fp32 weights are sharded, as with ZeRO 2 for weights and ZeRO 1 for gradients."""

    def estimate(**changes: Any) -> MemoryNeed:
        parallel = replace(load("tiny-llama", []).parallel, strategy="fsdp", **changes)
        return estimate_memory(SIZES, parallel, resolve_layout(parallel, 8, 8), "bf16", 1)

    alone, staged = estimate(zero=3), estimate(zero=3, pipeline=2)
    own = SIZES.parameters // 2
    assert staged.gathered >= 2 * own > alone.gathered
    assert staged.gradients == 4 * own > alone.gradients
    assert staged.weights == alone.weights
    assert estimate(zero=3, pipeline=2, offload=True).gradients == 4 * own
    assert estimate(zero=3, offload=True).gradients == 0


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "in_flight"),
    [("gpipe", 16, 16), ("1f1b", 16, 4), ("1f1b", 2, 2), ("interleaved", 16, 4 + 3 / 2), ("interleaved", 4, 4)],
)
def test_the_first_pipeline_stage_stores_activations_of_several_micro_batches(
    schedule: Any, micro_batches: int, in_flight: float
) -> None:
    def estimate(sizes: ModelSizes, count: int, **changes: Any) -> int:
        parallel = ParallelConfig(strategy="single", pipeline=4, schedule=schedule, **changes)
        return estimate_memory(sizes, parallel, Layout(pipeline=4), "fp32", 2, count).activations

    sizes = replace(SIZES, outputs=0)
    assert estimate(sizes, micro_batches) == 2 * in_flight * sizes.activations / 4
    # Only one block at a time holds its activations again.
    stored, block = sizes.blocks * sizes.block_input // 4, sizes.activations // sizes.blocks
    assert estimate(sizes, micro_batches, recompute="full") == int(2 * (in_flight * stored + block))
    assert estimate(replace(sizes, masked_pairs=100), micro_batches, recompute="full") == int(
        2 * (in_flight * (stored + 100) + block + 400)
    )


def test_context_ranks_share_activations_and_gather_keys_and_values() -> None:
    sizes = replace(SIZES, keys_values=GIB // 100)
    parallel = ParallelConfig(strategy="fsdp", context=4)
    whole, part = (
        estimate_memory(sizes, parallel, layout, "fp32", 1) for layout in (Layout(shard=8), Layout(shard=2, context=4))
    )
    assert part.weights == whole.weights
    assert part.states == whole.states
    assert part.activations == whole.activations // 4 + 16 * (GIB // 100)
    recomputed = replace(parallel, recompute="full")
    whole, part = (
        estimate_memory(sizes, recomputed, layout, "fp32", 1)
        for layout in (Layout(shard=8), Layout(shard=2, context=4))
    )
    assert part.activations == pytest.approx(whole.activations / 4 + GIB // 100, rel=1e-6)


def test_a_loss_in_chunks_needs_memory_for_one_chunk_of_logits() -> None:
    def estimate(sizes: ModelSizes, micro: int, tensor: int = 1) -> int:
        parallel = replace(ParallelConfig(), strategy="single", tensor=tensor)
        return estimate_memory(sizes, parallel, resolve_layout(parallel, tensor, tensor), "fp32", micro).activations

    sizes = replace(SIZES, activations=0, outputs=GIB)
    chunked = replace(sizes, outputs_at_once=GIB)
    assert [estimate(sizes, micro) for micro in (1, 4)] == [2 * GIB, 8 * GIB]
    assert [estimate(chunked, micro) for micro in (1, 4)] == [2 * GIB, 2 * GIB]
    # Each tensor-parallel rank has a quarter of the vocabulary.
    assert estimate(chunked, 4, tensor=4) == 2 * GIB // 4
    # The gradient of the head exists before those of the layers.
    assert estimate(replace(chunked, head=GIB), 4) == (2 + 4) * GIB
    config = load("tiny-llama", ["loss.chunk_tokens=10"])
    assert isinstance(config.model, LlamaConfig)
    assert count_outputs_at_once(config) == 4 * 10 * config.model.vocab_size
    tokens = {"inputs": torch.zeros(2, 16, dtype=torch.int64)}
    measured = measure.measure_sizes(config, tokens, "cpu")
    assert measured.outputs_at_once == count_outputs_at_once(config)
    assert measured.head == config.model.dim * config.model.vocab_size
    # LoRA freezes the head, also if it changes it.
    frozen, on_head = (
        measure.measure_sizes(
            load("tiny-llama", ["lora.rank=2", f"lora.layers=[{layers}]", "checkpoint.initial=unused"]), tokens, "cpu"
        )
        for layers in ("attention.*", "head")
    )
    assert (frozen.outputs_at_once > 0, frozen.head) == (True, 0)
    assert (on_head.outputs_at_once, on_head.head) == (frozen.outputs_at_once, 0)


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (["data.documents=separate", "model.heads=8", "model.kv_heads=2"], 3),
        (["data.documents=packed", "model.heads=8", "model.kv_heads=4", "data.kind=tokens", "data.path=shards"], 1),
        (["data.documents=separate", "model.heads=8", "model.kv_heads=8"], 0),
        (["data.documents=joined", "model.heads=8", "model.kv_heads=2"], 0),
    ],
)
def test_copies_of_shared_keys_are_counted_without_a_mask(settings: list[str], copies: int) -> None:
    """On a GPU, flex_attention needs no mask, but stores a copy of keys and values for each query head."""
    sizes = bound_sizes(load("tiny-llama", ["precision=bf16", *settings]))
    assert sizes is not None
    assert sizes.copied_keys_values == copies * sizes.keys_values
    by_flex = replace(sizes, masked_pairs=0, update=0)

    def estimate(measured: ModelSizes, layout: Layout, **changes: Any) -> int:
        return estimate_memory(measured, ParallelConfig(strategy="ddp", **changes), layout, "bf16", 2).activations

    without = replace(by_flex, copied_keys_values=0)
    more = 2 * copies * sizes.keys_values
    assert estimate(by_flex, Layout()) - estimate(without, Layout()) == sizes.blocks * more
    assert estimate(by_flex, Layout(), recompute="full") - estimate(without, Layout(), recompute="full") == more
    tensor = Layout(tensor=2)
    assert estimate(by_flex, tensor, tensor=2) - estimate(without, tensor, tensor=2) == sizes.blocks * more // 2
