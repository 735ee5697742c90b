"""Estimate the memory that a rank needs: weights by strategy, activations by recompute mode. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.auto.sizes import ModelSizes
from trainer.config.communication import CommunicationConfig
from trainer.config.layout import Layout
from trainer.config.reduction import choose_deferred_reduction
from trainer.config.residual import METHODS_WITH_RESIDUAL
from trainer.config.schema import OptimizerConfig, ParallelConfig, Precision
from trainer.state_formats import FORMAT_BYTES, StateFormats, formats_of

RESERVED_FRACTION = 0.10
"""Fraction of a device's memory left to fragmentation, the communication library and the driver."""

_FP32 = OptimizerConfig()
_WHOLE = CommunicationConfig()


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one rank needs, by purpose."""

    weights: int
    gradients: int
    states: int
    gathered: int
    activations: int
    residuals: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.states + self.gathered + self.activations + self.residuals


def estimate_memory(  # noqa: PLR0913, PLR0917
    sizes: ModelSizes,
    parallel: ParallelConfig,
    layout: Layout,
    precision: Precision,
    micro: int,
    micro_batches: int = 1,
    optimizer: OptimizerConfig = _FP32,
    communication: CommunicationConfig = _WHOLE,
    *,
    compiles: bool = False,
) -> MemoryNeed:
    """Return the bytes that a rank needs for micro-batches of `micro` samples.

    `micro_batches` is their number in a step; a pipeline holds the activations of several at once. Of `optimizer`, only
    the formats of weights and gradients count here: its state is part of `sizes`. `compiles` says whether blocks are
    compiled, which then store less if they are recomputed.
    """
    if layout.expert > 1:
        return _estimate_spread(sizes, parallel, layout, precision, micro, micro_batches, optimizer)
    sizes = _leave_out_last_products(sizes) if compiles else sizes
    formats = formats_of(precision, parallel, optimizer)
    model_ranks = layout.tensor * layout.pipeline
    own, trained = (-(-count // model_ranks) for count in (sizes.parameters, sizes.trainable))
    shards = layout.shard * layout.context if parallel.strategy in ("fsdp", "hsdp") else 1
    residuals = _estimate_residuals(-(-trained // shards), parallel, layout, communication)
    gradients = _estimate_gradients(trained, -(-trained // shards), parallel, layout, formats, micro_batches)
    stored = (formats.weight_bytes * -(-own // shards), -(-sizes.states // (model_ranks * shards)))
    weights, states = (0, 0) if parallel.offload else stored
    activations = _estimate_activations(sizes, parallel, layout, formats, micro_batches) * micro
    activations += _estimate_outputs(sizes, micro, layout, formats)
    # The update comes after the backward pass has freed the activations.
    temporary = activations if parallel.offload else max(activations, sizes.update)
    gathered = _estimate_gathered(sizes, own, parallel, formats, compiles)
    if parallel.strategy == "single" and micro_batches == 1:
        # Gradients take the place of activations, block by block, so the peak is at the start of the backward pass or
        # at its end.
        block = sizes.activations // max(sizes.blocks, 1) * micro
        gradients = max(0, gradients + max(block, sizes.update) - temporary)
    return MemoryNeed(weights, gradients, states, gathered, temporary, residuals)


def _leave_out_last_products(sizes: ModelSizes) -> ModelSizes:
    """Return the sizes without the last product of each block, whose sum with the block's input is all that is needed.

    Compiled code finds that out; without it, selective recomputation stores all products.
    """
    return replace(sizes, block_products=sizes.block_products - sizes.block_last_product)


def _estimate_spread(  # noqa: PLR0913, PLR0917
    sizes: ModelSizes,
    parallel: ParallelConfig,
    layout: Layout,
    precision: Precision,
    micro: int,
    micro_batches: int,
    optimizer: OptimizerConfig,
) -> MemoryNeed:
    """Return the bytes with expert parallelism: each rank works with its part of the experts only.

    Sharding divides the parts further, as it divides all other weights. Under ddp they are all that a rank holds.
    """
    formats = formats_of(precision, parallel, optimizer)
    without_experts = replace(layout, expert=1)
    block = sizes.experts // max(sizes.blocks, 1)
    if parallel.strategy in ("fsdp", "hsdp"):
        smaller = replace(sizes, largest_block=sizes.largest_block - block + block // layout.expert)
        return estimate_memory(smaller, parallel, without_experts, precision, micro, micro_batches, optimizer)
    share = 1 - sizes.experts / sizes.parameters
    others = replace(
        sizes,
        parameters=sizes.parameters - sizes.experts,
        trainable=int(sizes.trainable * share),
        states=int(sizes.states * share),
    )
    need = estimate_memory(others, parallel, without_experts, precision, micro, micro_batches, optimizer)
    own = -(-sizes.experts // (layout.expert * layout.pipeline))
    # With LoRA, the experts' share of the trained weights is about their share of all weights.
    trained = -(-sizes.experts * sizes.trainable // (sizes.parameters * layout.expert * layout.pipeline))
    copied = 0 if formats.products == formats.weights else formats.product_bytes * own
    return MemoryNeed(
        weights=need.weights + formats.weight_bytes * own,
        gradients=need.gradients + formats.gradient_bytes * trained,
        states=need.states + int(sizes.states * (1 - share)) // (layout.expert * layout.pipeline),
        gathered=need.gathered + copied,
        activations=need.activations,
    )


def _estimate_activations(
    sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, formats: StateFormats, micro_batches: int
) -> int:
    """Return the bytes stored for the backward pass for each sample of a micro-batch.

    With recomputation, one block at a time holds its activations again.
    """
    block = sizes.activations // max(sizes.blocks, 1)
    attention = _estimate_attention(sizes, layout, formats)
    if parallel.recompute == "none":
        stored, working = sizes.activations, 0
    elif parallel.recompute == "full":
        stored, working = sizes.blocks * sizes.block_input, block
    else:
        products = sizes.blocks * (sizes.block_input + sizes.block_products)
        stored, working = min(products, sizes.activations - block), block
    stored = stored // (layout.tensor * layout.pipeline) // layout.context
    working = working // layout.tensor // layout.context
    # All blocks share the mask itself, which has a byte for each pair of tokens, and the angles of positions.
    stored += (sizes.masked_pairs + sizes.document_angles) // layout.context
    if parallel.recompute == "none":
        stored += -(-sizes.blocks // layout.pipeline) * attention
    else:
        working += attention
    return int(stored * _count_in_flight(parallel, layout, micro_batches)) + working


def _estimate_attention(sizes: ModelSizes, layout: Layout, formats: StateFormats) -> int:
    """Return the bytes that a block's attention stores for one sample, beyond those of plain attention.

    Context ranks store the keys and values of whole sequences. Attention within documents stores them once for each
    query head. With a mask, it also stores the mask as numbers of the products' type.
    """
    keys_values = sizes.copied_keys_values + (sizes.keys_values if layout.context > 1 else 0)
    own = sizes.masked_pairs * formats.product_bytes
    return keys_values // layout.tensor + own // layout.context


def _count_in_flight(parallel: ParallelConfig, layout: Layout, micro_batches: int) -> float:
    """Return the micro-batches whose activations the first stage of a pipeline stores at the same time.

    An interleaved schedule starts more of them, each of a smaller part of the model.
    """
    if layout.pipeline == 1:
        return 1
    if parallel.schedule == "gpipe":
        return micro_batches
    more = (layout.pipeline - 1) / parallel.virtual_stages if parallel.schedule == "interleaved" else 0
    return min(micro_batches, layout.pipeline + more)


def _estimate_outputs(sizes: ModelSizes, micro: int, layout: Layout, formats: StateFormats) -> int:
    """Return the bytes of outputs and their gradient at the loss.

    A loss in chunks works on the part of the vocabulary that the rank has. Along with it, the gradient of the head is
    computed chunk by chunk and summed in fp32.
    """
    if not sizes.outputs_at_once:
        return 2 * micro * sizes.outputs // layout.context
    logits = 2 * min(micro * sizes.outputs // layout.context, sizes.outputs_at_once)
    summand = 0 if formats.products == "fp32" else formats.product_bytes
    return (logits + (FORMAT_BYTES["fp32"] + summand) * sizes.head) // layout.tensor


def _estimate_gradients(  # noqa: PLR0913, PLR0917
    trained: int, sharded: int, parallel: ParallelConfig, layout: Layout, formats: StateFormats, micro_batches: int
) -> int:
    """Return the bytes of gradients, given the trained weights of a rank before and after sharding.

    fully_shard sums whole gradients, and what waits for the sum over replicas, in the format of the reduction.
    """
    replicas = layout.merge_context(uses_fully_shard=parallel.strategy in ("fsdp", "hsdp")).replicate
    if parallel.strategy not in ("fsdp", "hsdp"):
        # If the network is slower than the backward pass, all buckets are waiting in the format of the reduction.
        is_copied = replicas > 1 and formats.reduced != formats.gradients
        return (formats.gradient_bytes + (formats.reduced_bytes if is_copied else 0)) * trained
    deferred, _ = choose_deferred_reduction(parallel, replicas, formats.gradients)
    # Pipeline stages scatter gradients after the last micro-batch, before offload moves them to the host. Without
    # stages, those of a single micro-batch are scattered at once.
    if parallel.pipeline > 1 or (deferred == "all" and micro_batches > 1):
        return formats.reduced_bytes * trained
    if parallel.offload:
        return 0
    has_partial_sums = deferred == "replicas" and micro_batches > 1
    return max(formats.gradient_bytes, formats.reduced_bytes if has_partial_sums else 0) * sharded


def _estimate_residuals(
    trained: int, parallel: ParallelConfig, layout: Layout, communication: CommunicationConfig
) -> int:
    """Return the bytes of what compressed gradients leave over: the residual, and its new value until the step ends.

    The moving average of top-K (`smoothing`) takes the same again. With `inner_steps`, nothing is compressed, but a
    rank has the weights that all copies share, and their momentum.
    """
    if communication.inner_steps:
        return 2 * FORMAT_BYTES["fp32"] * trained
    copies = layout.merge_context(uses_fully_shard=parallel.strategy in ("fsdp", "hsdp")).replicate
    if copies == 1 or communication.compression not in METHODS_WITH_RESIDUAL:
        return 0
    is_smoothed = communication.compression == "topk" and communication.smoothing > 0
    return (4 if is_smoothed else 2) * FORMAT_BYTES["fp32"] * trained


def _estimate_gathered(
    sizes: ModelSizes, own: int, parallel: ParallelConfig, formats: StateFormats, compiles: bool
) -> int:
    """Return the bytes of weights copied to the precision of the products and, under fsdp, of gradients in flight.

    Pipeline stages hold whole weights for a step, whatever `zero` is (parallel/fsdp.py). Compiled blocks that are
    recomputed copy their weights again; otherwise autocast keeps the copies until the end of the forward pass.
    """
    width = formats.product_bytes
    if parallel.strategy not in ("fsdp", "hsdp"):
        if formats.products == formats.weights:
            return 0
        is_copied_again = compiles and parallel.recompute != "none" and parallel.strategy == "single"
        # Upper bounds of the sizes do not divide the weights among the blocks.
        has_blocks = 0 < sizes.blocks * sizes.largest_block <= sizes.parameters
        others = (sizes.blocks - 1) * sizes.largest_block * own // sizes.parameters
        return width * (own - others if is_copied_again and has_blocks else own)
    in_flight = (1 + parallel.prefetch) * sizes.largest_block
    if parallel.zero == 3 and parallel.pipeline == 1:  # noqa: PLR2004 - ZeRO stage 3
        return width * in_flight + formats.reduced_bytes * sizes.largest_block
    return width * own + formats.reduced_bytes * in_flight
