"""The size of a model: its weights, the operations per sample, and the blocks of a ResNet.

Free of torch, because planners use it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, assert_never

from trainer.config.models import Gpt2Config, LlamaLikeConfig, MlpConfig, ModelConfig, MoeConfig, ResNetConfig

RESNET_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks in each stage, by depth."""
DEEPEST_BASIC_RESNET = 34


@dataclass(frozen=True)
class Shape:
    """The number of weights of a model, and the sizes from which its operations are counted."""

    params: int
    """Weights that are stored."""
    multiplied: int
    """Weights that are multiplied with each token: the head once, tied or not, but no embedding tables.

    Of a mixture of experts, only those that a token uses are counted. Norms and biases are included, as in the
    published figures that ours are compared with.
    """
    unit: Literal["tokens", "images", "samples"]
    """The unit of throughput."""
    seq_len: int = 0
    layers: int = 0
    attention_width: int = 0
    """Width of all query heads together."""
    window: int = 0
    """Tokens that a token sees; 0 means all tokens before it."""
    products: int = 0
    """Multiply-adds per sample without attention, for models whose samples have no tokens."""

    def flops_per_sample(self, seq_len: int = 0, *, is_frozen: bool = False) -> int:
        """Return the operations of the forward and backward pass of one sample, without recomputation.

        A multiply-add counts as two, and the backward pass as twice the forward pass. With tokens: 6 x multiplied x T
        + 12 x layers x width x T^2, where causal attention counts in full (PaLM, appendix B:
        https://arxiv.org/abs/2204.02311). A window W below T leaves 2 x T x W - W^2 of T^2, by the same rule: twice the
        pairs of tokens that see each other. Without tokens: 6 x products. Frozen weights have no gradients, which
        leaves 4 of the 6; the few operations of LoRA's layers are not counted.
        """
        passes = 4 if is_frozen else 6
        tokens = seq_len or self.seq_len
        if not tokens:
            return passes * self.products
        window = min(self.window or tokens, tokens)
        pairs = 2 * tokens * window - window**2
        return passes * self.multiplied * tokens + 12 * self.layers * self.attention_width * pairs


@dataclass(frozen=True)
class BlockPlan:
    """The channels and the stride of one residual block."""

    inputs: int
    width: int
    outputs: int
    stride: int


def is_bottleneck(config: ResNetConfig) -> bool:
    """Return whether the network is built from bottleneck blocks."""
    return config.depth > DEEPEST_BASIC_RESNET


def plan_blocks(config: ResNetConfig) -> list[BlockPlan]:
    """Return the residual blocks in order; each stage except the first halves the image and doubles the channels."""
    widening = 4 if is_bottleneck(config) else 1
    plan: list[BlockPlan] = []
    inputs = config.width
    for stage, count in enumerate(RESNET_STAGES[config.depth]):
        width = config.width * 2**stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            plan.append(BlockPlan(inputs, width, width * widening, stride))
            inputs = width * widening
    return plan


def shape_of(config: ModelConfig) -> Shape:
    """Return the shape of a model."""
    if isinstance(config, LlamaLikeConfig):
        return _measure_llama(config)
    if isinstance(config, Gpt2Config):
        return _measure_gpt2(config)
    if isinstance(config, ResNetConfig):
        return _measure_resnet(config)
    if isinstance(config, MlpConfig):
        return _measure_mlp(config)
    assert_never(config)


def _measure_llama(c: LlamaLikeConfig) -> Shape:
    q, kv = c.heads * c.head_width, c.kv_heads * c.head_width
    attention = 2 * c.dim * q + 2 * c.dim * kv + c.has_qkv_bias * (q + 2 * kv) + c.has_qk_norm * 2 * c.head_width
    ffn = 3 * c.dim * c.ffn
    router, experts, used = (c.experts * c.dim, c.experts, c.top_k) if isinstance(c, MoeConfig) else (0, 1, 1)
    inner = c.layers * (attention + router + experts * ffn + 2 * c.dim) + c.dim
    unused = c.layers * (experts - used) * ffn
    table = c.vocab_size * c.dim
    params = inner + table * (1 if c.tie_embeddings else 2)
    return Shape(params, inner - unused + table, "tokens", c.seq_len, c.layers, q, c.attention_window)


def _measure_gpt2(c: Gpt2Config) -> Shape:
    attention = 4 * (c.dim * c.dim + c.dim)
    ffn = 8 * c.dim * c.dim + 5 * c.dim
    inner = c.layers * (attention + ffn + 4 * c.dim) + 2 * c.dim
    table = c.vocab_size * c.dim
    params = inner + table * (1 if c.tie_embeddings else 2) + c.seq_len * c.dim
    return Shape(params, inner + table, "tokens", c.seq_len, c.layers, c.dim)


def _measure_resnet(c: ResNetConfig) -> Shape:
    size = _halve(c.image_size)
    weights, products = _measure_conv(3, c.width, 7, size)
    size = _halve(size)
    for block in plan_blocks(c):
        w, p, size = _measure_block(block, is_bottleneck(c), size)
        weights, products = weights + w, products + p
    head = plan_blocks(c)[-1].outputs * c.classes
    total = weights + head + c.classes
    return Shape(total, total, "images", products=products + head)


def _measure_block(block: BlockPlan, bottleneck: bool, size: int) -> tuple[int, int, int]:
    """Return weights, multiply-adds and the height of the output."""
    after = _halve(size) if block.stride > 1 else size
    if bottleneck:
        parts = [
            _measure_conv(block.inputs, block.width, 1, size),
            _measure_conv(block.width, block.width, 3, after),
            _measure_conv(block.width, block.outputs, 1, after),
        ]
    else:
        parts = [
            _measure_conv(block.inputs, block.width, 3, after),
            _measure_conv(block.width, block.outputs, 3, after),
        ]
    if block.inputs != block.outputs or block.stride > 1:
        parts.append(_measure_conv(block.inputs, block.outputs, 1, after))
    return sum(w for w, _ in parts), sum(p for _, p in parts), after


def _measure_conv(inputs: int, outputs: int, kernel: int, size: int) -> tuple[int, int]:
    """Return the weights, including the norm's, and the multiply-adds for an output of size x size."""
    weights = inputs * outputs * kernel * kernel
    return weights + 2 * outputs, weights * size * size


def _halve(size: int) -> int:
    return (size + 1) // 2


def _measure_mlp(c: MlpConfig) -> Shape:
    widths = (c.inputs, *c.hidden, c.classes)
    matrices = sum(a * b for a, b in pairwise(widths))
    return Shape(matrices + sum(widths[1:]), matrices, "samples", products=matrices)
