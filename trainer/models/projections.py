"""Linear layers with the same input, computed by one product on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.bias_gradients import can_sum, find_product_type, split_columns
from trainer.models.fp8 import Fp8Linear

_HALF = (torch.bfloat16, torch.float16)


def project_jointly(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> tuple[torch.Tensor, ...]:
    """Return the output of each layer.

    One wide product is faster than several narrow ones, and its backward pass needs no sum of their gradients. The
    weights are joined where a compiled graph casts them anyway: the casts write to the joint weight, and no copy is
    added.
    """
    if not can_join(x, layers):
        return tuple(layer(x) for layer in layers)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    dtype, sizes = find_product_type(x), [layer.out_features for layer in linears]
    weight = torch.cat([layer.weight.to(dtype) for layer in linears])
    biases = [layer.bias for layer in linears if layer.bias is not None]
    if can_sum(x, layers):
        bias = torch.cat(biases)
        joined = F.linear(x.to(dtype), weight, bias.detach().to(dtype))
        return split_columns(joined, bias, sizes)
    bias = torch.cat([each.to(dtype) for each in biases]) if biases else None
    first = layers[0]
    # The first layer's delayed scales, if it has any, are those of the joint operands.
    is_fp8 = isinstance(first, Fp8Linear)
    joined = first.multiply(x, weight, bias) if is_fp8 else F.linear(x.to(dtype), weight, bias)
    return joined.split(sizes, dim=-1)


def can_join(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> bool:
    """Return whether the weights are plain, and cast to half precision by autocast within a graph for a GPU.

    The backward pass keeps the joint weight of each layer. Where nothing is cast, it would be a copy: under fsdp, which
    casts weights itself, each rank would keep the whole weights of all layers, although fsdp frees them.
    """
    if not (torch.compiler.is_compiling() and x.is_cuda and find_product_type(x) in _HALF):
        return False
    has_bias = getattr(layers[0], "bias", None) is not None
    if len({type(layer) for layer in layers}) > 1:
        return False
    return all(_is_plain(layer, x) and (layer.bias is not None) == has_bias for layer in layers)


def _is_plain(layer: nn.Module, x: torch.Tensor) -> bool:
    """Return whether it is torch's own layer or ours for fp8, not one with LoRA, with a whole weight that is cast."""
    if layer.weight.dtype != torch.float32 or not torch.is_autocast_enabled(x.device.type):
        return False
    # Tensor parallelism keeps parts of weights, which are of another type.
    return type(layer) is Fp8Linear or (type(layer) is nn.Linear and type(layer.weight) is nn.Parameter)
