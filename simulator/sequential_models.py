"""The trainer's models that are no transformers, layer by layer as products of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from simulator.model import Layer, SequentialModel
from trainer.config.schema import MlpConfig, ResNetConfig
from trainer.models.shape import BlockPlan, is_bottleneck, plan_blocks

_AROUND = 6
"""Reads and writes of each output number of a matrix product, forward and backward: bias, activation."""
_MADE = 32
"""The same of a convolution's output: norm, activation, addition, casts, and copies between channel orders."""
_UNFOLDED = 12.5
"""The same of each number of a convolution's input, as often as a place of the output needs it.

Both from ResNet-18, -50 and -101 with the trainer's model on one H200: within 4 % of each.
"""
_POOLED = 5
"""Kept numbers of two bytes for each output of the pool behind the stem: itself, and its origin in eight bytes."""


def build_sequential_model(config: MlpConfig | ResNetConfig) -> SequentialModel:
    if isinstance(config, MlpConfig):
        widths = (config.inputs, *config.hidden, config.classes)
        return SequentialModel(layers=tuple(_linear(inputs, outputs) for inputs, outputs in pairwise(widths)))
    return SequentialModel(layers=tuple(_resnet(config)))


def _resnet(config: ResNetConfig) -> Iterator[Layer]:
    size = _halved(config.image_size)
    stem = _convolution(3, config.width, 7, size)
    size = _halved(size)
    yield replace(stem, kept=stem.kept + _POOLED * config.width * size * size)
    for block in plan_blocks(config):
        after = _halved(size) if block.stride > 1 else size
        yield from _block(block, is_bottleneck(config), size, after)
        size = after
    yield _linear(plan_blocks(config)[-1].outputs, config.classes)


def _block(block: BlockPlan, bottleneck: bool, size: int, after: int) -> Iterator[Layer]:
    if bottleneck:
        yield _convolution(block.inputs, block.width, 1, size)
        yield _convolution(block.width, block.width, 3, after)
        yield _convolution(block.width, block.outputs, 1, after)
    else:
        yield _convolution(block.inputs, block.width, 3, after)
        yield _convolution(block.width, block.outputs, 3, after)
    if block.inputs != block.outputs or block.stride > 1:
        yield _convolution(block.inputs, block.outputs, 1, after)


def _convolution(inputs: int, outputs: int, kernel: int, size: int) -> Layer:
    """`size` is height and width of what comes out."""
    inner, places = inputs * kernel * kernel, size * size
    made = outputs * places
    weights = inner * outputs + 2 * outputs
    # The product and what the norm makes of it are both needed again.
    moved = _MADE * made + int(_UNFOLDED * inner * places)
    return Layer(rows=places, inner=inner, columns=outputs, weights=weights, kept=2 * made, moved=moved)


def _linear(inputs: int, outputs: int) -> Layer:
    weights = inputs * outputs + outputs
    return Layer(rows=1, inner=inputs, columns=outputs, weights=weights, kept=outputs, moved=_AROUND * outputs)


def _halved(size: int) -> int:
    return (size + 1) // 2
