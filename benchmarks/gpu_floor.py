"""The floor of a training step on one GPU: the products, attention and least memory traffic of the step, and no more.

Every matrix product or convolution runs at its shape and layout, attention by its fastest kernel, and everything else
as copies of as many bytes as it must at least read and write. A step that is built from library kernels cannot be
faster; kernels that do elementwise work inside of products could.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config.models import ResNetConfig
from trainer.config.schema import Config
from trainer.models.registry import build_model
from trainer.models.shape import plan_blocks
from trainer.state_formats import FORMAT_BYTES

DEVICE = torch.device("cuda", 0)
Operation = Callable[[], Any]

_COPY_VALUES = 2**29
_BF16_BYTES = 2
_NORM_PASSES = 16
"""Passes over the residual stream in a layer: two norms, each with a sum; 4 forward and 4 backward."""


def make_floor(config: Config, samples: int) -> Operation:
    """Return a function that runs the floor of one step."""
    copies = _Copies()
    if isinstance(config.model, ResNetConfig):
        return _capture(_list_convolutions(config.model, samples, copies))
    operations = _list_products(config, samples, copies)

    def run() -> None:
        for operation in operations:
            operation()

    return run


class _Copies:
    """Memory traffic, by copies within two buffers that all operations share."""

    def __init__(self) -> None:
        self._source = torch.zeros(_COPY_VALUES, device=DEVICE, dtype=torch.bfloat16)
        self._target = torch.zeros_like(self._source)

    def move(self, count: float) -> Operation:
        """Return an operation that moves this many bytes, half of them read and half written."""
        times, more = divmod(int(count) // (2 * _BF16_BYTES), _COPY_VALUES)

        def run() -> None:
            for _ in range(times):
                self._target.copy_(self._source)
            self._target[:more].copy_(self._source[:more])

        return run


def _list_products(config: Config, samples: int, copies: _Copies) -> list[Operation]:
    """Return the operations of a decoder's step, in order."""
    model: Any = config.model
    length = config.data.seq_len or model.seq_len
    tokens, dim, layers = samples * length, model.dim, model.layers
    is_gated = model.family != "gpt2"
    width = model.head_width if is_gated else dim // model.heads
    kv_heads, ffn = (model.kv_heads, model.ffn) if is_gated else (model.heads, 4 * dim)
    queries, keys = model.heads * width, kv_heads * width
    shapes = {
        "qkv": (dim, queries + 2 * keys),
        "out": (queries, dim),
        "up": (dim, (2 if is_gated else 1) * ffn),
        "down": (ffn, dim),
    }
    # Rotary positions and SwiGLU, or GELU alone, forward and backward.
    between = 4 * (queries + keys) + 8 * ffn if is_gated else 5 * ffn
    layer_bytes = tokens * _BF16_BYTES * (_NORM_PASSES * dim + between)
    weights = layers * sum(inputs * outputs for inputs, outputs in shapes.values())
    weights += (1 if model.tie_embeddings else 2) * dim * model.vocab_size
    loss_bytes = tokens * model.vocab_size * _BF16_BYTES * 3
    linear = {name: _make_linear(tokens, *shape) for name, shape in shapes.items()}
    attention = _make_attention((samples, length, width), model.heads, kv_heads)
    move = copies.move(layer_bytes / 2)
    forward = [linear["qkv"][0], attention, linear["out"][0], linear["up"][0], linear["down"][0], move]
    backward = [linear[name][part] for name in ("down", "up", "out", "qkv") for part in (1, 2)]
    head = [*_make_linear(tokens, dim, model.vocab_size), copies.move(loss_bytes)]
    return [*forward * layers, *head, *[*backward, move] * layers, copies.move(weights * _count_update_bytes(config))]


def _count_update_bytes(config: Config) -> int:
    """Return the bytes of AdamW's update per weight.

    The weight and two moments are read and written, a gradient in bf16 is read twice, and an fp32 weight is copied to
    bf16, in which it is multiplied.
    """
    optimizer = config.optimizer
    weight = FORMAT_BYTES["fp32" if optimizer.master else optimizer.weights]
    copied = _BF16_BYTES if weight > _BF16_BYTES else 0
    return 2 * (weight + 2 * FORMAT_BYTES[optimizer.moments]) + 2 * _BF16_BYTES + copied


def _make_linear(tokens: int, inputs: int, outputs: int) -> list[Operation]:
    """Return the three products of a linear layer: forward, and the gradients of inputs and weight."""
    x, weight, slope = _draw(tokens, inputs), _draw(outputs, inputs), _draw(tokens, outputs)
    result, for_x, for_weight = (torch.empty_like(value) for value in (slope, x, weight))
    return [
        partial(torch.mm, x, weight.t(), out=result),
        partial(torch.mm, slope, weight, out=for_x),
        partial(torch.mm, slope.t(), x, out=for_weight),
    ]


def _make_attention(shape: tuple[int, int, int], heads: int, kv_heads: int) -> Operation:
    """Return causal attention, forward and backward, by cuDNN's kernels, which are the fastest on Hopper."""
    samples, length, width = shape
    q, slope = (_draw(samples, heads, length, width) for _ in range(2))
    k, v = (_draw(samples, kv_heads, length, width) for _ in range(2))
    inputs = [value.requires_grad_() for value in (q, k, v)]

    def run() -> None:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            output = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=heads != kv_heads)
        torch.autograd.grad(output, inputs, slope)

    return run


def _list_convolutions(model: ResNetConfig, samples: int, copies: _Copies) -> list[Operation]:
    """Return the operations of a ResNet's step; its first convolution runs over blocks of 2x2 pixels."""
    operations: list[Operation] = []
    values = 0
    for (inputs, size, outputs, kernel, stride), count in _count_convolutions(model).items():
        is_first = inputs == 3  # noqa: PLR2004 - the colours of an image
        shape = (16, size // 2 + 3, outputs, 4, 1) if is_first else (inputs, size, outputs, kernel, stride)
        operations += _make_convolution(samples, *shape, is_first=is_first) * count
        values += count * samples * outputs * (size // stride) ** 2
    # Batch norm reads its inputs for the statistics before it uses them, and again in the backward pass.
    shortcuts = sum(samples * block.outputs * size**2 for block, size in _list_sizes(model))
    pooled = samples * model.width * (model.image_size // 2) ** 2
    count = _BF16_BYTES * (8 * values + 3 * shortcuts + 2.5 * pooled)
    return [*operations, *[copies.move(count / 32)] * 32]


def _count_convolutions(model: ResNetConfig) -> Counter[tuple[int, int, int, int, int]]:
    """Return how often each convolution occurs, by inputs, size of the image, outputs, kernel and stride."""
    counts: Counter[tuple[int, int, int, int, int]] = Counter()
    with torch.device("meta"):
        network = build_model(model)
        images = torch.empty(1, 3, model.image_size, model.image_size)

    def count(layer: Any, inputs: Sequence[torch.Tensor]) -> None:
        shape = (layer.in_channels, inputs[0].shape[-1], layer.out_channels, layer.kernel_size[0], layer.stride[0])
        counts.update([shape])

    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_pre_hook(count)
    network(images)
    return counts


def _list_sizes(model: ResNetConfig) -> list[tuple[Any, int]]:
    """Return the blocks with the size of their images."""
    size, sized = model.image_size // 4, []
    for block in plan_blocks(model):
        size //= block.stride
        sized.append((block, size))
    return sized


def _make_convolution(  # noqa: PLR0913, PLR0917
    samples: int, inputs: int, size: int, outputs: int, kernel: int, stride: int, *, is_first: bool
) -> list[Operation]:
    """Return a convolution and its gradients; images themselves need none."""
    padding = 0 if is_first else kernel // 2
    after = (size + 2 * padding - kernel) // stride + 1
    x, weight, slope = (
        _draw(*shape).to(memory_format=torch.channels_last)
        for shape in (
            (samples, inputs, size, size),
            (outputs, inputs, kernel, kernel),
            (samples, outputs, after, after),
        )
    )

    def differentiate(*mask: bool) -> None:
        arguments = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, list(mask))
        torch.ops.aten.convolution_backward(slope, x, weight, *arguments)

    forward = partial(F.conv2d, x, weight, None, stride, padding)
    for_x, for_weight = partial(differentiate, True, False, False), partial(differentiate, False, True, False)
    return [forward, for_weight] if is_first else [forward, for_x, for_weight]


def _capture(operations: list[Operation]) -> Operation:
    """Return a function that runs the operations as one CUDA graph, so that no launch is waited for."""
    torch.backends.cudnn.benchmark = True
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for operation in operations:
            operation()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for operation in operations:
            operation()
    return graph.replay


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)
