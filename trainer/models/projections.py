"""Linear layers with the same input, computed by one product on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.fp8 import Fp8Linear


def project_jointly(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> tuple[torch.Tensor, ...]:
    """Return the output of each layer.

    One wide product is faster than several narrow ones, and its backward pass needs no sum of their gradients. The
    weights are joined where a compiled graph casts them anyway, so that the casts write to the joint weight and no copy
    is added.
    """
    if not can_join(x, layers):
        return tuple(layer(x) for layer in layers)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    dtype = torch.get_autocast_dtype(x.device.type)
    weight = torch.cat([layer.weight.to(dtype) for layer in linears])
    biases = [layer.bias.to(dtype) for layer in linears if layer.bias is not None]
    bias = torch.cat(biases) if biases else None
    first = layers[0]
    # The first layer's delayed scales, if it has any, are those of the joint operands.
    is_fp8 = isinstance(first, Fp8Linear)
    joined = first.multiply(x, weight, bias) if is_fp8 else F.linear(x.to(dtype), weight, bias)
    return joined.split([layer.out_features for layer in linears], dim=-1)


def can_join(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> bool:
    """Return whether the weights are plain, and cast by autocast within a graph for a GPU."""
    if not (torch.compiler.is_compiling() and x.is_cuda and torch.is_autocast_enabled("cuda")):
        return False
    has_bias = getattr(layers[0], "bias", None) is not None
    if len({type(layer) for layer in layers}) > 1:
        return False
    return all(_is_plain(layer) and (layer.bias is not None) == has_bias for layer in layers)


def _is_plain(layer: nn.Module) -> bool:
    """Return whether it is torch's own layer or ours for fp8, not one with LoRA, and its weight is stored in fp32."""
    return type(layer) in (nn.Linear, Fp8Linear) and layer.weight.dtype == torch.float32
