"""How many weights a model has and how many operations a sample takes. Free of torch: planners read it too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trainer.config.schema import Gpt2Config, LlamaConfig, MlpConfig, ModelConfig, ResNetConfig
from trainer.models.resnet_plan import BlockPlan, blocks, is_bottleneck


@dataclass(frozen=True)
class Shape:
    """`params` are stored. `multiplied` are used in a product for each token: the head once, tied or not, tables of
    embeddings not at all; norms and biases count as if, as in the published figures that ours stand beside.
    `products` is the multiply-adds of one sample without attention, for models whose samples have no tokens."""

    params: int
    multiplied: int
    unit: Literal["tokens", "images", "samples"]
    seq_len: int = 0
    layers: int = 0
    dim: int = 0
    products: int = 0

    def flops_per_sample(self, seq_len: int = 0) -> int:
        """Operations of forward and backward, two per multiply-add, backward twice the forward; nothing recomputed.

        Tokens: 6 x multiplied x T + 12 x layers x dim x T^2, causal attention counted in full (PaLM, appendix B:
        https://arxiv.org/abs/2204.02311). Others: 6 x products.
        """
        tokens = seq_len or self.seq_len
        if not tokens:
            return 6 * self.products
        return 6 * self.multiplied * tokens + 12 * self.layers * self.dim * tokens**2


def shape_of(config: ModelConfig) -> Shape:
    if isinstance(config, LlamaConfig):
        return _llama(config)
    if isinstance(config, Gpt2Config):
        return _gpt2(config)
    if isinstance(config, ResNetConfig):
        return _resnet(config)
    return _mlp(config)


def _llama(c: LlamaConfig) -> Shape:
    kv = c.dim // c.heads * c.kv_heads
    block = 2 * c.dim * c.dim + 2 * c.dim * kv + 3 * c.dim * c.ffn + 2 * c.dim
    inner = c.layers * block + c.dim
    table = c.vocab_size * c.dim
    params = inner + table * (1 if c.tie_embeddings else 2)
    return Shape(params, inner + table, "tokens", c.seq_len, c.layers, c.dim)


def _gpt2(c: Gpt2Config) -> Shape:
    attention = 4 * (c.dim * c.dim + c.dim)
    ffn = 8 * c.dim * c.dim + 5 * c.dim
    inner = c.layers * (attention + ffn + 4 * c.dim) + 2 * c.dim
    table = c.vocab_size * c.dim
    params = inner + table * (1 if c.tie_embeddings else 2) + c.seq_len * c.dim
    return Shape(params, inner + table, "tokens", c.seq_len, c.layers, c.dim)


def _resnet(c: ResNetConfig) -> Shape:
    size = _halved(c.image_size)
    weights, products = _convolution(3, c.width, 7, size)
    size = _halved(size)
    for block in blocks(c):
        w, p, size = _block(block, is_bottleneck(c), size)
        weights, products = weights + w, products + p
    head = blocks(c)[-1].outputs * c.classes
    total = weights + head + c.classes
    return Shape(total, total, "images", products=products + head)


def _block(block: BlockPlan, bottleneck: bool, size: int) -> tuple[int, int, int]:
    """Weights, multiply-adds and the height of what comes out."""
    after = _halved(size) if block.stride > 1 else size
    if bottleneck:
        parts = [
            _convolution(block.inputs, block.width, 1, size),
            _convolution(block.width, block.width, 3, after),
            _convolution(block.width, block.outputs, 1, after),
        ]
    else:
        parts = [_convolution(block.inputs, block.width, 3, after), _convolution(block.width, block.outputs, 3, after)]
    if block.inputs != block.outputs or block.stride > 1:
        parts.append(_convolution(block.inputs, block.outputs, 1, after))
    return sum(w for w, _ in parts), sum(p for _, p in parts), after


def _convolution(inputs: int, outputs: int, kernel: int, size: int) -> tuple[int, int]:
    """Weights with the norm's, and the multiply-adds of size x size places."""
    weights = inputs * outputs * kernel * kernel
    return weights + 2 * outputs, weights * size * size


def _halved(size: int) -> int:
    return (size + 1) // 2


def _mlp(c: MlpConfig) -> Shape:
    widths = (c.inputs, *c.hidden, c.classes)
    matrices = sum(a * b for a, b in pairwise(widths))
    return Shape(matrices + sum(widths[1:]), matrices, "samples", products=matrices)
