"""What one rank needs in memory: weights and their company by strategy, activations by recompute mode. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.layout import Layout
from trainer.config.schema import ParallelConfig, Precision

WEIGHT = 4
"""Weights, gradients and each optimizer state are fp32; matrix products may be in two bytes."""
RESERVE = 0.10
"""Share of a device's memory left to the allocator's gaps, the communication library and the driver."""


@dataclass(frozen=True)
class Sizes:
    """Bytes and counts of one model, read off the model itself."""

    parameters: int
    largest_block: int
    states: int
    """Optimizer states per parameter: 2 for AdamW, 1 for SGD with momentum."""
    blocks: int
    activations: int
    """Bytes kept for backward by one sample, nothing recomputed."""
    block_input: int
    """Bytes of one block's input for one sample: what full recompute keeps of a block."""
    block_products: int
    """Bytes of one block's matrix products for one sample: what selective recompute keeps besides."""
    outputs: int
    """Bytes of one sample's outputs (logits) in fp32; backward holds them and their gradient at once."""


@dataclass(frozen=True)
class Need:
    """Bytes of one rank, by what they are for."""

    weights: int
    gradients: int
    states: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.states + self.gathered + self.activations


def need(sizes: Sizes, parallel: ParallelConfig, layout: Layout, precision: Precision, micro: int) -> Need:
    parts = layout.tensor * layout.pipeline
    own = -(-sizes.parameters // parts)
    shards = layout.shard if parallel.strategy in ("fsdp", "hsdp") else 1
    sharded = -(-own // shards)
    kept = WEIGHT * sharded
    gradients = _gradients(own, sharded, parallel)
    weights, states = (0, 0) if parallel.offload else (kept, kept * sizes.states)
    activations = micro * (activation_bytes(sizes, parallel.recompute) // parts + 2 * sizes.outputs)
    return Need(weights, gradients, states, _gathered(sizes, own, parallel, precision), activations)


def activation_bytes(sizes: Sizes, recompute: str) -> int:
    """For one sample. Recomputing needs one block's own activations again while it goes backward."""
    block = sizes.activations // max(sizes.blocks, 1)
    if recompute == "full":
        return sizes.blocks * sizes.block_input + block
    if recompute == "selective":
        return min(sizes.blocks * (sizes.block_input + sizes.block_products) + block, sizes.activations)
    return sizes.activations


def _gradients(own: int, sharded: int, parallel: ParallelConfig) -> int:
    """Stages of a pipeline scatter them after the last micro-batch, before the host takes them where it does."""
    if parallel.strategy in ("fsdp", "hsdp") and parallel.pipeline > 1:
        return WEIGHT * own
    if parallel.offload:
        return 0
    whole = parallel.strategy in ("single", "ddp") or parallel.zero == 1
    return WEIGHT * (own if whole else sharded)


def _gathered(sizes: Sizes, own: int, parallel: ParallelConfig, precision: Precision) -> int:
    """Copies of weights in the type of the products; under fsdp also the whole gradient of the block in flight.

    Stages of a pipeline hold theirs whole for a step, whatever `zero` says (parallel/fsdp.py).
    """
    width = WEIGHT if precision == "fp32" else 2
    if parallel.strategy not in ("fsdp", "hsdp"):
        return 0 if precision == "fp32" else width * own
    in_flight = (1 + parallel.prefetch) * sizes.largest_block
    if parallel.zero == 3 and parallel.pipeline == 1:  # noqa: PLR2004  # the stage's own name
        return width * in_flight + WEIGHT * sizes.largest_block
    return width * own + WEIGHT * in_flight
