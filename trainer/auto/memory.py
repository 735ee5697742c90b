"""Estimate the memory that a rank needs: weights by strategy, activations by recompute mode. Imports no torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from trainer.config.layout import Layout
from trainer.config.models import DecoderConfig, LlamaLikeConfig, MlpConfig, MoeConfig
from trainer.config.schema import Config, ParallelConfig, Precision
from trainer.models.shape import shape_of
from trainer.optimizers.sizes import bound_state_bytes, bound_update_bytes
from trainer.state_formats import FORMAT_BYTES, StateFormats, formats_of, list_state_formats

RESERVED_FRACTION = 0.10
"""Fraction of a device's memory left to fragmentation, the communication library and the driver."""

# Upper bounds of the values that a block stores per token, as multiples of the width of the residual stream, of the
# feed-forward layers, and of the attention scores: about twice what our models store.
_STREAM_MULTIPLE, _FFN_MULTIPLE, _SCORES_MULTIPLE = 40, 8, 4


@dataclass(frozen=True)
class ModelSizes:
    """Counts of weights and bytes of activations of a model, measured or bounded from above."""

    parameters: int
    trainable: int
    """Parameters that are trained: only those have gradients and optimizer state."""
    largest_block: int
    """Parameters of the largest block."""
    states: int
    """Bytes of the optimizer state."""
    update: int
    """Bytes that an update takes for a moment, beside the state."""
    blocks: int
    activations: int
    """Bytes stored for the backward pass of one sample, without recomputation."""
    block_input: int
    """Bytes of one block's input for one sample: all that full recomputation stores of a block."""
    block_products: int
    """Bytes of one block's matrix products for one sample, which selective recomputation stores as well."""
    outputs: int
    """Bytes of one sample's outputs (logits) in fp32; the backward pass holds them and their gradient."""
    outputs_at_once: int = 0
    """Bytes of the outputs that exist at a time at most, if the loss is computed in chunks; 0 if it is not."""
    keys_values: int = 0
    """Bytes of one block's keys and values for one sample, which context ranks gather for whole sequences."""
    experts: int = 0
    """Parameters of all experts, which are part of `parameters`."""
    masked_pairs: int = 0
    """Pairs of tokens in one sample, if a mask says which of them see each other; 0 if nothing has to."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that one rank needs, by purpose."""

    weights: int
    gradients: int
    states: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.states + self.gathered + self.activations


def estimate_memory(
    sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, precision: Precision, micro: int
) -> MemoryNeed:
    """Return the bytes that a rank needs for micro-batches of `micro` samples."""
    if layout.expert > 1:
        return _estimate_spread(sizes, parallel, layout, precision, micro)
    formats = formats_of(precision, parallel)
    model_ranks = layout.tensor * layout.pipeline
    own, trained = (-(-count // model_ranks) for count in (sizes.parameters, sizes.trainable))
    shards = layout.shard * layout.context if parallel.strategy in ("fsdp", "hsdp") else 1
    gradients = _estimate_gradients(trained, -(-trained // shards), parallel, formats)
    stored = (formats.weight_bytes * -(-own // shards), -(-sizes.states // (model_ranks * shards)))
    weights, states = (0, 0) if parallel.offload else stored
    per_sample = _estimate_activations(sizes, parallel.recompute) // model_ranks
    if layout.context > 1:
        gathered_blocks = sizes.blocks if parallel.recompute == "none" else 1
        per_sample = per_sample // layout.context + gathered_blocks * sizes.keys_values // model_ranks
    per_sample += _estimate_mask(sizes, parallel, layout, formats)
    activations = micro * per_sample + _estimate_outputs(sizes, micro, layout)
    # The update comes after the backward pass has freed the activations.
    temporary = activations if parallel.offload else max(activations, sizes.update)
    return MemoryNeed(weights, gradients, states, _estimate_gathered(sizes, own, parallel, formats), temporary)


def _estimate_spread(
    sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, precision: Precision, micro: int
) -> MemoryNeed:
    """Return the bytes with expert parallelism: each rank works with its part of the experts only.

    Sharding divides the parts further, as it divides all other weights. Under ddp they are all that a rank holds.
    """
    formats = formats_of(precision, parallel)
    without_experts = replace(layout, expert=1)
    block = sizes.experts // max(sizes.blocks, 1)
    if parallel.strategy in ("fsdp", "hsdp"):
        smaller = replace(sizes, largest_block=sizes.largest_block - block + block // layout.expert)
        return estimate_memory(smaller, parallel, without_experts, precision, micro)
    share = 1 - sizes.experts / sizes.parameters
    others = replace(
        sizes,
        parameters=sizes.parameters - sizes.experts,
        trainable=int(sizes.trainable * share),
        states=int(sizes.states * share),
    )
    need = estimate_memory(others, parallel, without_experts, precision, micro)
    own = -(-sizes.experts // (layout.expert * layout.pipeline))
    copied = 0 if formats.products == formats.weights else formats.product_bytes * own
    return MemoryNeed(
        weights=need.weights + formats.weight_bytes * own,
        gradients=need.gradients + formats.gradient_bytes * own,
        states=need.states + int(sizes.states * (1 - share)) // (layout.expert * layout.pipeline),
        gathered=need.gathered + copied,
        activations=need.activations,
    )


def bound_sizes(config: Config) -> ModelSizes | None:
    """Return an upper bound of a model's sizes, derived from its settings alone; None where the network decides.

    If even the bound fits into memory, nothing has to be measured. LoRA's layers are chosen by their names, which only
    the network has.
    """
    if config.lora.rank:
        return None
    model = config.model
    parameters = shape_of(model).params
    states = bound_state_bytes(parameters, config.optimizer)
    update = bound_update_bytes(parameters, config.optimizer)
    if update is None:
        return None
    value = FORMAT_BYTES["fp32"]
    if isinstance(model, MlpConfig):
        stored = value * 8 * (model.inputs + sum(model.hidden) + model.classes)
        outputs = value * model.classes
        blocks = len(model.hidden)
        return ModelSizes(parameters, parameters, parameters, states, update, blocks, stored, stored, stored, outputs)
    if not isinstance(model, DecoderConfig):
        return None
    length = config.data.seq_len or model.seq_len
    # The heads may be wider together than the residual stream.
    width = max(model.dim, model.heads * model.head_width) if isinstance(model, LlamaLikeConfig) else model.dim
    ffn = model.ffn if isinstance(model, LlamaLikeConfig) else 4 * model.dim
    if isinstance(model, MoeConfig):
        # Each expert of a token has a copy of it, its hidden values and its output.
        width, ffn = width * (1 + model.top_k), ffn * model.top_k
    per_token = _STREAM_MULTIPLE * width + _FFN_MULTIPLE * ffn + _SCORES_MULTIPLE * model.heads * length
    block = value * length * per_token
    outputs = value * length * model.vocab_size
    # The embedding and the head are outside the blocks.
    stored = model.layers * block + value * _STREAM_MULTIPLE * length * model.dim + 4 * outputs
    at_once, keys_values = count_outputs_at_once(config), count_keys_values(config)
    experts = 3 * model.layers * model.experts * model.dim * model.ffn if isinstance(model, MoeConfig) else 0
    sizes = (parameters, parameters, parameters, states, update, model.layers, stored, block, block, outputs)
    return ModelSizes(*sizes, at_once, keys_values, experts, count_masked_pairs(config))


def count_keys_values(config: Config) -> int:
    """Return the bytes of the keys and values of one block for one sample; 0 for models without attention."""
    model = config.model
    if not isinstance(model, DecoderConfig):
        return 0
    width = model.kv_heads * model.head_width if isinstance(model, LlamaLikeConfig) else model.dim
    return 2 * (config.data.seq_len or model.seq_len) * width * list_state_formats(config).product_bytes


def count_masked_pairs(config: Config) -> int:
    """Return the pairs of tokens in a sample that a mask of documents covers; 0 if documents are joined."""
    if config.data.documents == "joined" or not isinstance(config.model, DecoderConfig):
        return 0
    return int((config.data.seq_len or config.model.seq_len) ** 2)


def count_outputs_at_once(config: Config) -> int:
    """Return the bytes of the logits that exist at a time at most, in fp32."""
    tokens = config.loss.chunk_tokens or sys.maxsize
    return FORMAT_BYTES["fp32"] * tokens * config.model.vocab_size if isinstance(config.model, DecoderConfig) else 0


def _estimate_activations(sizes: ModelSizes, recompute: str) -> int:
    """Return the bytes for one sample; with recomputation, one block at a time holds its activations again."""
    block = sizes.activations // max(sizes.blocks, 1)
    if recompute == "full":
        return sizes.blocks * sizes.block_input + block
    if recompute == "selective":
        return min(sizes.blocks * (sizes.block_input + sizes.block_products) + block, sizes.activations)
    return sizes.activations


def _estimate_mask(sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, formats: StateFormats) -> int:
    """Return the bytes of the mask of one sample: a byte for each pair, which all blocks share, and a copy per block.

    torch's attention turns the mask into numbers of the products' type, and stores them for the backward pass.
    """
    blocks = -(-sizes.blocks // layout.pipeline) if parallel.recompute == "none" else 1
    return sizes.masked_pairs * (1 + blocks * formats.product_bytes) // layout.context


def _estimate_outputs(sizes: ModelSizes, micro: int, layout: Layout) -> int:
    """Return the bytes of outputs and their gradient at the loss.

    A loss in chunks works on the part of the vocabulary that the rank has, with one more copy if it is a part.
    """
    if not sizes.outputs_at_once:
        return 2 * micro * sizes.outputs // layout.context
    copies = 3 if layout.tensor > 1 else 2
    return copies * min(micro * sizes.outputs // layout.context, sizes.outputs_at_once) // layout.tensor


def _estimate_gradients(trained: int, sharded: int, parallel: ParallelConfig, formats: StateFormats) -> int:
    # Pipeline stages scatter gradients after the last micro-batch, before offload moves them to the host.
    if parallel.strategy in ("fsdp", "hsdp") and parallel.pipeline > 1:
        return formats.gradient_bytes * trained
    if parallel.offload:
        return 0
    is_whole = parallel.strategy in ("single", "ddp") or parallel.zero == 1
    return formats.gradient_bytes * (trained if is_whole else sharded)


def _estimate_gathered(sizes: ModelSizes, own: int, parallel: ParallelConfig, formats: StateFormats) -> int:
    """Return the bytes of weights copied to the precision of the products and, under fsdp, of gradients in flight.

    Pipeline stages hold whole weights for a step, whatever `zero` is (parallel/fsdp.py).
    """
    width = formats.product_bytes
    if parallel.strategy not in ("fsdp", "hsdp"):
        return 0 if formats.products == formats.weights else width * own
    in_flight = (1 + parallel.prefetch) * sizes.largest_block
    if parallel.zero == 3 and parallel.pipeline == 1:  # noqa: PLR2004 - ZeRO stage 3
        return width * in_flight + formats.reduced_bytes * sizes.largest_block
    return width * own + formats.reduced_bytes * in_flight
