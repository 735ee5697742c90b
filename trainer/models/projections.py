"""Linear layers with the same input, computed by one product on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.bias_gradients import can_sum, find_product_type, split_columns
from trainer.models.fp8 import Fp8Linear

_HALF = (torch.bfloat16, torch.float16)


def project_jointly(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> tuple[torch.Tensor, ...]:
    """Return the output of each layer.

    One wide product is faster than several narrow ones, and its backward pass needs no sum of their gradients. Where a
    compiled graph casts the weights anyway, the casts write to the joint weight, and no copy is added. Other weights
    are copied to a joint weight for the time of a product.
    """
    if not can_join(x, layers):
        return tuple(layer(x) for layer in layers)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    dtype, sizes = find_product_type(x), [layer.out_features for layer in linears]
    biases = [layer.bias for layer in linears if layer.bias is not None]
    weights = [layer.weight for layer in linears]
    if can_sum(x, layers):
        bias = torch.cat(biases)
        return split_columns(_multiply(x.to(dtype), weights, bias.detach().to(dtype)), bias, sizes)
    joint_bias = torch.cat([each.to(dtype) for each in biases]) if biases else None
    first = layers[0]
    if isinstance(first, Fp8Linear):
        # The first layer's delayed scales, if it has any, are those of the joint operands.
        return first.multiply(x, _join(weights, dtype), joint_bias).split(sizes, dim=-1)
    return _multiply(x.to(dtype), weights, joint_bias).split(sizes, dim=-1)


def can_join(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> bool:
    """Return whether the weights are plain, and multiplied in half precision within a graph for a GPU."""
    if not (torch.compiler.is_compiling() and x.is_cuda and find_product_type(x) in _HALF):
        return False
    has_bias = getattr(layers[0], "bias", None) is not None
    if len({type(layer) for layer in layers}) > 1:
        return False
    return all(_is_plain(layer, x) and (layer.bias is not None) == has_bias for layer in layers)


def _is_plain(layer: nn.Module, x: torch.Tensor) -> bool:
    """Return whether it is torch's own layer or ours for fp8, not one with LoRA, and its weight is whole.

    fp8 products cast weights that are stored in bf16 one by one, without a copy.
    """
    is_cast = layer.weight.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type)
    if type(layer) is Fp8Linear:
        return is_cast
    # Tensor parallelism keeps parts of weights, which are of another type.
    is_whole = type(layer) is nn.Linear and type(layer.weight) is nn.Parameter
    return is_whole and (is_cast or layer.weight.dtype == find_product_type(x))


def _join(weights: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([weight.to(dtype) for weight in weights])


def _multiply(x: torch.Tensor, weights: list[torch.Tensor], bias: torch.Tensor | None) -> torch.Tensor:
    """Return the joint product, with weights cast to the type of x, or as they are stored."""
    if weights[0].dtype != x.dtype:
        return F.linear(x, _join(weights, x.dtype), bias)
    joined: torch.Tensor = _MultiplyStored.apply(x, bias, *weights)
    return joined


class _MultiplyStored(torch.autograd.Function):
    """The product with several weights, whose joint copy exists during each product only.

    A joint weight that is part of the graph would be kept for the backward pass: under fsdp, which frees the weights of
    a layer after use, each rank would keep those of all layers.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, *weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.has_bias = bias is not None
        return multiply_jointly(x, list(weights), bias)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        # Graphs compute only those of the gradients that are needed.
        rows = slope.flatten(0, -2)
        for_weights = torch.mm(rows.t(), x.flatten(0, -2)).split([len(weight) for weight in weights])
        return differentiate_jointly(slope, weights), rows.sum(0) if ctx.has_bias else None, *for_weights


@torch.library.custom_op("muster::multiply_jointly", mutates_args=())
def multiply_jointly(x: torch.Tensor, weights: list[torch.Tensor], bias: torch.Tensor | None) -> torch.Tensor:
    """Return the outputs of all layers next to each other."""
    return F.linear(x, torch.cat(weights), bias)


@multiply_jointly.register_fake
def _describe_product(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    bias: torch.Tensor | None,  # noqa: ARG001 - the parameters of the operation
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], sum(len(weight) for weight in weights))


@torch.library.custom_op("muster::differentiate_jointly", mutates_args=())
def differentiate_jointly(slope: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of the input from that of the joint outputs."""
    return torch.matmul(slope, torch.cat(weights))


@differentiate_jointly.register_fake
def _describe_gradient(slope: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return slope.new_empty(*slope.shape[:-1], weights[0].shape[1])
