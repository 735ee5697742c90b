"""The number formats of a run's state, and the bytes they take: the only place that knows them. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config.schema import Config, MomentFormat, OptimizerConfig, ParallelConfig, Precision, StoredFormat

FORMAT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
SCALE_BYTES = FORMAT_BYTES["fp32"]
"""Bytes of the scale that the values of an int8 block share."""
BLOCK_SIZES = (256, 128, 64, 32)
"""Values that share a scale: the largest of these numbers that divides a row."""


@dataclass(frozen=True)
class StateFormats:
    """The format of each kind of state."""

    weights: StoredFormat
    """Weights as the model stores them."""
    has_master: bool
    """Whether the optimizer keeps fp32 copies of trained weights and updates those."""
    gradients: StoredFormat
    """Gradients as they are accumulated over micro-batches and given to the optimizer."""
    reduced: StoredFormat
    """Gradients as ranks exchange them."""
    moments: MomentFormat
    """Moments of the optimizer."""
    products: Precision
    """Weights and activations in matrix products; if it is not that of the weights, they are copied."""

    @property
    def weight_bytes(self) -> int:
        return FORMAT_BYTES[self.weights]

    @property
    def gradient_bytes(self) -> int:
        return FORMAT_BYTES[self.gradients]

    @property
    def reduced_bytes(self) -> int:
        return FORMAT_BYTES[self.reduced]

    @property
    def product_bytes(self) -> int:
        return FORMAT_BYTES[self.products]


def list_state_formats(config: Config) -> StateFormats:
    """Return the formats that the settings mean."""
    return formats_of(config.precision, config.parallel, config.optimizer)


def formats_of(precision: Precision, parallel: ParallelConfig, optimizer: OptimizerConfig) -> StateFormats:
    """Return the formats for a precision of matrix products and the settings of parallelism and optimizer."""
    return StateFormats(
        weights=optimizer.weights,
        has_master=optimizer.master,
        gradients=optimizer.gradients,
        reduced=parallel.reduce,
        moments=optimizer.moments,
        products=precision,
    )


def choose_moment_format(requested: MomentFormat, shape: Sequence[int]) -> MomentFormat:
    """Return the format of a parameter's moments: vectors and odd rows, which have no int8 blocks, stay fp32."""
    return "fp32" if requested == "int8" and not choose_block_size(shape) else requested


def choose_block_size(shape: Sequence[int]) -> int:
    """Return how many values of a row share a scale in int8, or 0 if the parameter is not stored so.

    A block never spans two rows, so a checkpoint can be loaded by any number of ranks that share the rows.
    """
    row = math.prod(shape[1:]) if len(shape) > 1 else 0
    return next((size for size in BLOCK_SIZES if row and row % size == 0), 0)


def count_master_bytes(optimizer: OptimizerConfig, values: int) -> int:
    """Return the bytes of the fp32 copies that the optimizer keeps of this many trained weights."""
    return FORMAT_BYTES["fp32"] * values if optimizer.master else 0


def count_moment_bytes(requested: MomentFormat, shape: Sequence[int]) -> int:
    """Return the bytes of one moment of a parameter."""
    actual = choose_moment_format(requested, shape)
    values = math.prod(shape)
    scales = values // choose_block_size(shape) if actual == "int8" else 0
    return values * FORMAT_BYTES[actual] + scales * SCALE_BYTES
