"""The feed-forward layers of Llama in fp8 with delayed scales, as one step of autograd.

Gradients that autograd passes from layer to layer are bf16 tensors. Here the activation between the products takes and
gives fp8 values (fp8_swiglu.py), and the input that gate and up share is cast once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.models.fp8 import (
    DelayedScales,
    Fp8Linear,
    add_scale,
    cast_delayed,
    casts_stored_weight,
    flatten_rows,
    multiply_scaled,
    record_maxima,
    unflatten_rows,
)
from trainer.models.fp8_formats import E4M3, E5M2
from trainer.models.fp8_swiglu import activate_fp8, differentiate_activation_fp8


def can_feed_forward(layers: tuple[nn.Module, ...]) -> bool:
    """Return whether all layers compute in fp8 with delayed scales now, and have no biases."""
    return all(
        isinstance(layer, Fp8Linear) and layer.training and layer.delayed is not None and layer.bias is None
        for layer in layers
    )


def feed_forward(x: torch.Tensor, layers: tuple[nn.Module, ...]) -> torch.Tensor:
    """Return `down(silu(gate(x)) * up(x))` of the layers gate, up and down, and update their largest values."""
    weights: list[torch.Tensor] = []
    scales: list[DelayedScales] = []
    for layer in layers:
        if isinstance(layer, Fp8Linear) and layer.delayed is not None:
            stored = casts_stored_weight(layer.weight)
            weights.append(layer.weight if stored else layer.weight.to(torch.bfloat16))
            scales.append(layer.delayed)
    y, maxima = _FeedForward.apply(
        flatten_rows(x), *weights, *(each.scales for each in scales), *(each.gradient_maximum for each in scales)
    )
    for each, own in zip(scales, maxima.unbind(), strict=True):
        record_maxima(each, own)
    return unflatten_rows(y, x)


class _FeedForward(torch.autograd.Function):
    """The output of the three layers, and for each of them the largest values of its input and its weight."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917  # autograd passes tensors by position only
        ctx: Any,
        x: torch.Tensor,
        gate_weight: torch.Tensor,
        up_weight: torch.Tensor,
        down_weight: torch.Tensor,
        gate_scales: torch.Tensor,
        up_scales: torch.Tensor,
        down_scales: torch.Tensor,
        *gradient_maxima: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Gate and up have always had the same input, and so has their history of it.
        x8, x_columns, x_maximum = cast_delayed(x, gate_scales[0], E4M3)
        gate8, gate_columns, gate_maximum = cast_delayed(gate_weight, gate_scales[1], E4M3)
        up8, up_columns, up_maximum = cast_delayed(up_weight, up_scales[1], E4M3)
        gate, up = (multiply_scaled(x8, weight, is_gradient=False) for weight in (gate8, up8))
        hidden8, hidden_columns, hidden_maximum = add_scale(*activate_fp8(gate, up, down_scales[0]))
        down8, down_columns, down_maximum = cast_delayed(down_weight, down_scales[1], E4M3)
        operands = (*x_columns, *gate_columns, *up_columns, *hidden_columns, *down_columns)
        ctx.save_for_backward(*operands, gate, up, gate_scales, up_scales, down_scales)
        ctx.weight_types = (gate_weight.dtype, up_weight.dtype, down_weight.dtype)
        # Not saved tensors: those must not change until the backward pass has read them.
        ctx.gradient_maxima = gradient_maxima
        maxima = (x_maximum, gate_maximum, x_maximum, up_maximum, hidden_maximum, down_maximum)
        stacked = torch.stack(maxima).view(3, 2)
        ctx.mark_non_differentiable(stacked)
        return multiply_scaled(hidden8, down8, is_gradient=False), stacked

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *operands, gate, up, gate_scales, up_scales, down_scales = ctx.saved_tensors
        x, gate_weight, up_weight, hidden, down_weight = zip(operands[::2], operands[1::2], strict=True)
        gate_type, up_type, down_type = ctx.weight_types
        rows, columns, maximum = cast_delayed(gradient, down_scales[2], E5M2)
        of_hidden = multiply_scaled(rows, down_weight, is_gradient=True)
        of_down = multiply_scaled(columns, hidden, is_gradient=True, dtype=down_type)
        values, transposed, figures = differentiate_activation_fp8(of_hidden, gate, up, gate_scales[2], up_scales[2])
        gate_rows, gate_columns, gate_maximum = add_scale(values[0], transposed[0], figures[0])
        up_rows, up_columns, up_maximum = add_scale(values[1], transposed[1], figures[1])
        of_x = multiply_scaled(gate_rows, gate_weight, is_gradient=True)
        of_x = of_x + multiply_scaled(up_rows, up_weight, is_gradient=True)
        of_gate = multiply_scaled(gate_columns, x, is_gradient=True, dtype=gate_type)
        of_up = multiply_scaled(up_columns, x, is_gradient=True, dtype=up_type)
        for total, largest in zip(ctx.gradient_maxima, (gate_maximum, up_maximum, maximum), strict=True):
            total.copy_(torch.maximum(total, largest))
        return of_x, of_gate, of_up, of_down, *(None,) * 6
