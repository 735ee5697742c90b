"""Sizes of a model that decide what memory a rank needs, and upper bounds of them from settings alone.

Imports no torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from trainer.config.models import DecoderConfig, LlamaLikeConfig, MlpConfig, MoeConfig
from trainer.config.schema import Config
from trainer.models.shape import shape_of
from trainer.optimizers.sizes import bound_state_bytes, bound_update_bytes
from trainer.state_formats import FORMAT_BYTES, list_state_formats

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
    head: int = 0
    """Parameters of the head, if a loss in chunks computes their gradient."""
    keys_values: int = 0
    """Bytes of one block's keys and values for one sample, which context ranks gather for whole sequences."""
    copied_keys_values: int = 0
    """Bytes that a block stores beyond them if documents are separated, because each query head has a copy of its own.

    Both a mask and flex_attention need these copies (trainer/models/document_blocks.py).
    """
    experts: int = 0
    """Parameters of all experts, which are part of `parameters`."""
    document_angles: int = 0
    """Bytes of rotary angles for one sample, if positions are counted within documents; all blocks share them."""
    masked_pairs: int = 0
    """Pairs of tokens in one sample, if a mask says which of them see each other; 0 if nothing has to."""
    block_last_product: int = 0
    """Bytes of the product with which a decoder's block ends, for one sample; it is part of `block_products`."""


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
    sizes = (parameters, parameters, parameters, states, update, model.layers, stored, block, block, outputs)
    return ModelSizes(
        *sizes,
        outputs_at_once=count_outputs_at_once(config),
        head=model.dim * model.vocab_size,
        keys_values=count_keys_values(config),
        copied_keys_values=count_copied_keys_values(config),
        experts=3 * model.layers * model.experts * model.dim * model.ffn if isinstance(model, MoeConfig) else 0,
        document_angles=count_document_angles(config),
        masked_pairs=count_masked_pairs(config),
    )


def count_keys_values(config: Config) -> int:
    """Return the bytes of the keys and values of one block for one sample; 0 for models without attention."""
    model = config.model
    if not isinstance(model, DecoderConfig):
        return 0
    width = model.head_width * model.kv_heads if isinstance(model, LlamaLikeConfig) else model.dim
    return 2 * (config.data.seq_len or model.seq_len) * width * list_state_formats(config).product_bytes


def count_copied_keys_values(config: Config) -> int:
    """Return the bytes that copies of shared keys and values take beyond the keys and values; 0 without documents."""
    model = config.model
    if config.data.documents == "joined" or not isinstance(model, LlamaLikeConfig):
        return 0
    return count_keys_values(config) * (model.heads // model.kv_heads - 1)


def count_document_angles(config: Config) -> int:
    """Return the bytes of the sines and cosines of one sample; 0 if all samples share them."""
    if config.data.documents == "joined" or not isinstance(config.model, LlamaLikeConfig):
        return 0
    values = 2 * (config.model.head_width // 2)
    return FORMAT_BYTES["fp32"] * values * (config.data.seq_len or config.model.seq_len)


def count_masked_pairs(config: Config) -> int:
    """Return the pairs of tokens in a sample that a mask of documents covers; 0 if documents are joined."""
    if config.data.documents == "joined" or not isinstance(config.model, DecoderConfig):
        return 0
    return int((config.data.seq_len or config.model.seq_len) ** 2)


def count_outputs_at_once(config: Config) -> int:
    """Return the bytes of the logits that exist at a time at most, in fp32."""
    tokens = config.loss.chunk_tokens or sys.maxsize
    return FORMAT_BYTES["fp32"] * tokens * config.model.vocab_size if isinstance(config.model, DecoderConfig) else 0
