"""Gradients of biases in compiled graphs for a GPU, summed by kernels that read or write the slopes anyway.

The gradient of a bias is the sum of its layer's slopes over all tokens. As an operation of its own it would read them
once more. Here layers get their biases detached, and the next operation returns the biases' gradients with its own.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_HAS_TRITON = find_spec("triton") is not None


def can_sum(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> bool:
    """Return whether the kernels can run: in a graph for a GPU, after products in bf16 of torch's own layers."""
    if not (torch.compiler.is_compiling() and x.is_cuda and _HAS_TRITON and find_product_type(x) == torch.bfloat16):
        return False
    # Tensor parallelism keeps parts of weights, which are of another type.
    return all(
        type(layer) is nn.Linear and type(layer.weight) is nn.Parameter and layer.bias is not None for layer in layers
    )


def find_product_type(x: torch.Tensor) -> torch.dtype:
    """Return the type of products with x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def project(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """Return the output of a layer whose bias gets its gradient from the operation that follows."""
    return F.linear(x, layer.weight, layer.bias.detach())


def activate(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """Return GELU of the layer's output, with a gradient for its bias."""
    activated: torch.Tensor = _Gelu.apply(project(x, layer), layer.bias)
    return activated


def split_columns(joined: torch.Tensor, bias: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
    """Return the parts of a joint product, with a gradient for the bias that was added to it, detached."""
    parts: tuple[torch.Tensor, ...] = _Split.apply(joined, bias, sizes)
    return parts


def add_and_normalize(
    x: torch.Tensor, y: torch.Tensor, norm: nn.LayerNorm, bias: torch.Tensor, next_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + y and its normalised values, with gradients for two biases: that of y and the next one.

    The next one must belong to the only other value to which x + y is added, so that both have the same slopes.
    """
    total, normalized = _AddAndNormalize.apply(x, y, norm.weight, norm.bias, bias, next_bias, norm.eps)
    return total, normalized


class _Gelu(torch.autograd.Function):
    """GELU of x; x contains the bias already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bias_type = bias.dtype
        return compute_gelu(x)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (x,) = ctx.saved_tensors
        for_x, for_bias = differentiate_gelu(slope, x)
        return for_x, for_bias.to(ctx.bias_type)


class _Split(torch.autograd.Function):
    """Parts of x by columns; x contains the bias already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        ctx.bias_type = bias.dtype
        return x.split(sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        for_x, for_bias = join_columns(list(slopes))
        return for_x, for_bias.to(ctx.bias_type), None


class _AddAndNormalize(torch.autograd.Function):
    """The sum of x and y, and its layer norm; y contains its bias already."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917  # autograd passes tensors by position only
        ctx: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        norm_bias: torch.Tensor,
        bias: torch.Tensor,
        next_bias: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        values = total.float()
        variance, mean = torch.var_mean(values, dim=-1, correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + eps)
        normalized = (values - mean) * inverse * weight + norm_bias
        ctx.save_for_backward(total, mean, inverse, weight)
        ctx.types = (weight.dtype, norm_bias.dtype, bias.dtype, next_bias.dtype)
        return total, normalized.to(total.dtype)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor, norm_slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total, mean, inverse, weight = ctx.saved_tensors
        for_total, sums = differentiate_norm(slope, norm_slope, total, mean, inverse, weight)
        gradients = [each.to(dtype) for each, dtype in zip(sums.unbind(), ctx.types, strict=True)]
        return for_total, for_total, *gradients, None


@torch.library.custom_op("muster::compute_gelu", mutates_args=())
def compute_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of x; the compiler's kernel moves a fifth fewer bytes per second."""
    if not x.is_cuda:
        return F.gelu(x.float(), approximate="tanh").to(x.dtype)
    # Triton is imported where it is used: it takes long, and the package exists on Linux only.
    from trainer.models import bias_gradients_kernel as kernels  # noqa: PLC0415

    return kernels.activate(x.contiguous())


@compute_gelu.register_fake
def _describe_activated(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("muster::differentiate_gelu", mutates_args=())
def differentiate_gelu(slope: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x from that of its GELU, and its sums over all but the last dimension, in fp32."""
    if not x.is_cuda:
        exact = torch.ops.aten.gelu_backward(slope.float(), x.float(), approximate="tanh")
        return exact.to(x.dtype), exact.flatten(0, -2).sum(0)
    from trainer.models import bias_gradients_kernel as kernels  # noqa: PLC0415 - as above

    return kernels.differentiate_gelu(slope.contiguous(), x.contiguous())


@differentiate_gelu.register_fake
def _describe_gelu(slope: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    return torch.empty_like(x, memory_format=torch.contiguous_format), _describe_sums(x)


@torch.library.custom_op("muster::join_columns", mutates_args=())
def join_columns(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one tensor with the columns of all parts, and its sums over all but the last dimension, in fp32."""
    if not parts[0].is_cuda:
        joined = torch.cat(parts, dim=-1)
        return joined, joined.float().flatten(0, -2).sum(0)
    from trainer.models import bias_gradients_kernel as kernels  # noqa: PLC0415 - as above

    return kernels.join_columns([part.contiguous() for part in parts])


@join_columns.register_fake
def _describe_joined(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    joined = parts[0].new_empty(*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
    return joined, _describe_sums(joined)


@torch.library.custom_op("muster::differentiate_norm", mutates_args=())
def differentiate_norm(  # noqa: PLR0913, PLR0917
    slope: torch.Tensor,
    norm_slope: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x, which is used as it is and normalised, and four rows of sums over all tokens in fp32.

    They are the sums for the norm's weight and bias, of the gradient of x, and of `slope`.
    """
    if not x.is_cuda:
        values = (x.float() - mean) * inverse
        weighted = norm_slope.float() * weight
        centred = weighted - weighted.mean(-1, keepdim=True) - values * (weighted * values).mean(-1, keepdim=True)
        for_x = centred * inverse + slope.float()
        sums = (norm_slope.float() * values, norm_slope.float(), for_x, slope.float())
        return for_x.to(x.dtype), torch.stack([each.flatten(0, -2).sum(0) for each in sums])
    from trainer.models import bias_gradients_kernel as kernels  # noqa: PLC0415 - as above

    return kernels.differentiate_norm(
        slope.contiguous(), norm_slope.contiguous(), x.contiguous(), mean.contiguous(), inverse.contiguous(), weight
    )


@differentiate_norm.register_fake
def _describe_norm(  # noqa: PLR0913, PLR0917
    slope: torch.Tensor,  # noqa: ARG001 - the parameters of the operation
    norm_slope: torch.Tensor,  # noqa: ARG001
    x: torch.Tensor,
    mean: torch.Tensor,  # noqa: ARG001
    inverse: torch.Tensor,  # noqa: ARG001
    weight: torch.Tensor,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    sums = x.new_empty(4, x.shape[-1], dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), sums


def _describe_sums(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[-1], dtype=torch.float32)
