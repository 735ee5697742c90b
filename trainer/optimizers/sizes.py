"""Count the bytes of optimizer state and of the memory that an update takes for a moment. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.groups import choose_group, list_moments
from trainer.state_formats import BLOCK_SIZES, FORMAT_BYTES, SCALE_BYTES, count_master_bytes, count_moment_bytes

CHUNK_VALUES = 8 * 2**20
"""Values of bf16 or int8 moments, or of bf16 weights or gradients, that are unpacked at once."""
_CHUNK_VALUE_BYTES = 40
"""Bytes per value while a chunk is unpacked, updated and rounded: ten fp32 tensors at most."""
_COPY_BYTES = 4
"""Bytes per value of the fp32 copy of a bf16 weight or gradient."""
GATHERED_VALUES = 32 * 2**20
"""Values of orthogonalised matrices, in bf16, that a rank gathers from all replicas at once."""
_GATHERED_VALUE_BYTES = 4
"""Bytes per gathered value: the next ones arrive while the last ones are still stored."""
_MUON_VALUE_BYTES = 16
"""Bytes per value of the matrix that a rank orthogonalises: sent, received and transformed in bf16, added in fp32."""

NamedShapes = Iterable[tuple[str, Sequence[int]]]


def count_state_bytes(parameters: NamedShapes, config: OptimizerConfig, embeddings: Container[str] = ()) -> int:
    """Return the bytes of the optimizer state of these parameters."""
    total = 0
    for name, shape in parameters:
        group = choose_group(name, shape, config, is_embedding=name in embeddings)
        total += len(list_moments(group.rule, config)) * count_moment_bytes(config.moments, shape)
        total += count_master_bytes(config, math.prod(shape))
    return total


def bound_state_bytes(parameters: int, config: OptimizerConfig) -> int:
    """Return an upper bound of the bytes of the optimizer state, from the number of parameters alone."""
    # Muon keeps one moment of a matrix, but two of what it leaves to AdamW.
    moments = len(list_moments("adamw" if config.name == "muon" else config.name, config))
    # Parameters that int8 does not suit stay fp32.
    each = moments * FORMAT_BYTES["fp32" if config.moments == "int8" else config.moments]
    return parameters * each + count_master_bytes(config, parameters)


def bound_update_bytes(parameters: int, config: OptimizerConfig) -> int | None:
    """Return an upper bound of what `count_update_bytes` returns; None if it depends on the shapes."""
    if config.name == "muon":
        return None
    return _count_chunk_bytes(config) * min(parameters, CHUNK_VALUES)


def average_moment_bytes(config: OptimizerConfig, other_share: float) -> float:
    """Return the bytes of moments per parameter of a large model, without its few vectors.

    `other_share` is the share of embeddings and heads, which Muon leaves to AdamW.
    """
    each = FORMAT_BYTES[config.moments] + (SCALE_BYTES / BLOCK_SIZES[0] if config.moments == "int8" else 0.0)
    moments = len(list_moments(config.name, config)) + (other_share if config.name == "muon" else 0.0)
    return each * moments


def count_update_bytes(parameters: NamedShapes, config: OptimizerConfig, embeddings: Container[str] = ()) -> int:
    """Return the bytes that an update takes on a rank, beside the state, whatever the number of ranks."""
    largest = chunked = 0
    for name, shape in parameters:
        values = math.prod(shape)
        if choose_group(name, shape, config, is_embedding=name in embeddings).rule == "muon":
            largest = max(largest, values)
        else:
            chunked += values
    each = _count_chunk_bytes(config)
    unpacked = each * min(chunked, CHUNK_VALUES)
    if not largest:
        return unpacked
    # Muon unpacks whole matrices, one at a time, beside the direction of the one that it orthogonalises.
    whole = each + FORMAT_BYTES["bf16"] if config.moments != "fp32" else _MUON_VALUE_BYTES + each
    return max(unpacked, whole * largest) + _GATHERED_VALUE_BYTES * GATHERED_VALUES


def _count_chunk_bytes(config: OptimizerConfig) -> int:
    """Return the bytes per value while a chunk is updated; 0 if everything is fp32 and changed in place."""
    has_copied_weights = config.weights != "fp32" and not config.master
    # Stochastic rounding takes noise, and the bits of the sum with it.
    copied = (_COPY_BYTES * 4 if has_copied_weights else 0) + (_COPY_BYTES if config.gradients != "fp32" else 0)
    return copied + (_CHUNK_VALUE_BYTES if config.moments != "fp32" else 0)
