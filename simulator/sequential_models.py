"""Build the trainer's ResNets and MLPs as lists of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from simulator.model import Layer, SequentialModel
from trainer.config.models import MlpConfig, ResNetConfig
from trainer.models.shape import BlockPlan, is_bottleneck, plan_blocks

_LINEAR_PASSES = 6
"""Reads and writes per output of a linear layer outside its product, forward and backward: bias, activation."""
_CONVOLUTION_PASSES = 32
"""Reads and writes per output of a convolution: norm, activation, addition, casts, copies between channel orders."""
_UNFOLD_PASSES = 12.5
"""Reads and writes per input of a convolution's unfolded product.

This and the constant above were measured with the trainer's ResNet-18, -50 and -101 on one H200: within 4 % of each.
"""
_SAVED_PER_POOL_OUTPUT = 5
"""Two-byte numbers saved per output of the pool after the stem: the value, and its eight-byte index."""


def build_sequential_model(config: MlpConfig | ResNetConfig) -> SequentialModel:
    """Build the layers of an MLP or a ResNet."""
    if isinstance(config, MlpConfig):
        widths = (config.inputs, *config.hidden, config.classes)
        return SequentialModel(layers=tuple(_linear(inputs, outputs) for inputs, outputs in pairwise(widths)))
    return SequentialModel(layers=tuple(_resnet(config)))


def _resnet(config: ResNetConfig) -> Iterator[Layer]:
    size = _halved(config.image_size)
    stem = _convolution(3, config.width, 7, size)
    size = _halved(size)
    yield replace(stem, saved=stem.saved + _SAVED_PER_POOL_OUTPUT * config.width * size * size)
    for block in plan_blocks(config):
        output_size = _halved(size) if block.stride > 1 else size
        yield from _block(block, is_bottleneck(config), size, output_size)
        size = output_size
    yield _linear(plan_blocks(config)[-1].outputs, config.classes)


def _block(block: BlockPlan, bottleneck: bool, size: int, output_size: int) -> Iterator[Layer]:
    if bottleneck:
        yield _convolution(block.inputs, block.width, 1, size)
        yield _convolution(block.width, block.width, 3, output_size)
        yield _convolution(block.width, block.outputs, 1, output_size)
    else:
        yield _convolution(block.inputs, block.width, 3, output_size)
        yield _convolution(block.width, block.outputs, 3, output_size)
    if block.inputs != block.outputs or block.stride > 1:
        yield _convolution(block.inputs, block.outputs, 1, output_size)


def _convolution(inputs: int, outputs: int, kernel: int, size: int) -> Layer:
    """Describe a convolution whose output is `size` x `size`."""
    inner, positions = inputs * kernel * kernel, size * size
    output_count = outputs * positions
    weights = inner * outputs + 2 * outputs
    # Backward needs both the product and the norm's output.
    moved = _CONVOLUTION_PASSES * output_count + int(_UNFOLD_PASSES * inner * positions)
    return Layer(rows=positions, inner=inner, columns=outputs, weights=weights, saved=2 * output_count, moved=moved)


def _linear(inputs: int, outputs: int) -> Layer:
    weights = inputs * outputs + outputs
    return Layer(rows=1, inner=inputs, columns=outputs, weights=weights, saved=outputs, moved=_LINEAR_PASSES * outputs)


def _halved(size: int) -> int:
    return (size + 1) // 2
