"""Sizes of a model in round numbers, from which tests compute memory."""

from __future__ import annotations

from trainer.auto.choose import GIB
from trainer.auto.sizes import ModelSizes

# 2 GiB of weights, 8 GiB with gradients and Adam's states; 0.5 GiB of activations per sample.
SIZES = ModelSizes(
    parameters=GIB // 2,
    trainable=GIB // 2,
    largest_block=GIB // 40,
    states=4 * GIB,
    update=0,
    blocks=16,
    activations=GIB // 2,
    block_input=GIB // 400,
    block_products=GIB // 100,
    outputs=GIB // 100,
)
