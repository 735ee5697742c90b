"""Linear layers whose products are fp8, in which GPUs since Hopper and Ada compute twice as fast as in bf16.

An fp8 value has 8 bits, so each operand of a product is divided by a scale that maps its largest value to the largest
one of the format, and the result is multiplied by both scales. A scale is derived from the values themselves in every
product ("dynamic"), or from the largest values of the last steps ("delayed", trainer/fp8_history.py), so that one pass
over an operand is enough. Operands are rounded to e4m3 (3 bits of mantissa); gradients that share one scale to e5m2,
which has fewer digits and a wider range. Sums, outputs and stored weights are not fp8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.check_fp8 import FP8_MULTIPLE
from trainer.models.fp8_cast import cast_fp8
from trainer.models.fp8_formats import E4M3, E5M2, SMALLEST_SCALE


@dataclass(frozen=True)
class DelayedScales:
    """The scales of a layer's operands in this step, and the largest absolute values that they have had in it."""

    scales: torch.Tensor
    """Of input, weight and gradient of the output; 0 if the last steps had none."""
    maxima: torch.Tensor
    """Of input and weight. A forward pass that is recomputed changes nothing."""
    gradient_maximum: torch.Tensor
    """A tensor of its own, because the backward pass writes it."""


class Fp8Linear(nn.Linear):
    """A linear layer with fp8 products. `use_fp8` turns torch's own layers into it."""

    has_row_scales: bool
    delayed: DelayedScales | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(x, self.weight, self.bias)

    def multiply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply by a weight with this layer's scales; an evaluation derives them from the values."""
        delayed = self.delayed if self.training else None
        return multiply_fp8(x, weight, bias, has_row_scales=self.has_row_scales, delayed=delayed)


def use_fp8(layer: nn.Linear, *, has_row_scales: bool) -> None:
    """Let a linear layer compute in fp8, with a scale for each row of an operand or one for all of it."""
    layer.__class__ = Fp8Linear
    layer.has_row_scales = has_row_scales
    layer.delayed = None


def multiply_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    has_row_scales: bool,
    delayed: DelayedScales | None = None,
) -> torch.Tensor:
    """Return `F.linear(x, weight, bias)` in bf16, computed in fp8, as are the gradients of `x` and `weight`.

    With delayed scales, their largest values are updated.
    """
    rows = flatten_rows(x)
    if delayed is None or not casts_stored_weight(weight):
        weight = weight.to(torch.bfloat16)
    y = _multiply_rows(rows, weight, has_row_scales=has_row_scales, delayed=delayed)
    y = unflatten_rows(y, x)
    return y if bias is None else y + bias.to(y.dtype)


def casts_stored_weight(weight: torch.Tensor) -> bool:
    """Return whether a cast reads the weight as it is stored, so that no copy in bf16 is written and read before."""
    return weight.dtype == torch.float32


def flatten_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x as a bf16 matrix whose number of rows fits fp8 products: rows of zeros change no sum and no scale."""
    rows = x.to(torch.bfloat16).flatten(0, -2)
    missing = -rows.shape[0] % FP8_MULTIPLE
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def unflatten_rows(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the rows in the shape of `x`, without those that `flatten_rows` has added."""
    return rows[: x.numel() // x.shape[-1]].unflatten(0, x.shape[:-1])


def _multiply_rows(
    x: torch.Tensor, weight: torch.Tensor, *, has_row_scales: bool, delayed: DelayedScales | None
) -> torch.Tensor:
    y: torch.Tensor
    if delayed is None:
        product = _RowScaledProduct if has_row_scales else _TensorScaledProduct
        y = product.apply(x, weight)
        return y
    y, maxima = _DelayedProduct.apply(x, weight, delayed.scales, delayed.gradient_maximum)
    record_maxima(delayed, maxima)
    return y


@torch.no_grad()
def record_maxima(delayed: DelayedScales, maxima: torch.Tensor) -> None:
    """Update the largest values of input and weight in this step."""
    delayed.maxima.copy_(torch.maximum(delayed.maxima, maxima))


class _TensorScaledProduct(torch.autograd.Function):
    """x @ weight.T with one scale for each operand: its transpose has the same fp8 values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x8, weight8 = _scale_tensor(x, E4M3), _scale_tensor(weight, E4M3)
        ctx.save_for_backward(*x8, *weight8)
        return multiply_scaled(x8, weight8, is_gradient=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        values, scale = _scale_tensor(gradient, E5M2)
        of_x = multiply_scaled((values, scale), (weight.t().contiguous(), weight_scale), is_gradient=True)
        of_weight = multiply_scaled((values.t().contiguous(), scale), (x.t().contiguous(), x_scale), is_gradient=True)
        return of_x, of_weight


class _DelayedProduct(torch.autograd.Function):
    """x @ weight.T with one scale for each operand, which is given, and the largest values of x and weight."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, gradient_maximum: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x8, x_columns, x_maximum = cast_delayed(x, scales[0], E4M3)
        weight8, weight_columns, weight_maximum = cast_delayed(weight, scales[1], E4M3)
        ctx.save_for_backward(*x_columns, *weight_columns, scales)
        ctx.weight_type = weight.dtype
        # Not a saved tensor: those must not change until the backward pass has read them.
        ctx.gradient_maximum = gradient_maximum
        maxima = torch.stack((x_maximum, weight_maximum))
        ctx.mark_non_differentiable(maxima)
        return multiply_scaled(x8, weight8, is_gradient=False), maxima

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, x_scale, weight, weight_scale, scales = ctx.saved_tensors
        rows, columns, maximum = cast_delayed(gradient, scales[2], E5M2)
        ctx.gradient_maximum.copy_(torch.maximum(ctx.gradient_maximum, maximum))
        of_x = multiply_scaled(rows, (weight, weight_scale), is_gradient=True)
        # Written as it will be stored: fp32 weights have fp32 gradients, and their sum is not rounded before.
        of_weight = multiply_scaled(columns, (x, x_scale), is_gradient=True, dtype=ctx.weight_type)
        return of_x, of_weight, None, None


class _RowScaledProduct(torch.autograd.Function):
    """x @ weight.T with a scale for each row of an operand, which keeps a large value from spoiling other rows.

    In the gradients' products, columns become rows, so operands are scaled anew.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return multiply_scaled(_scale_rows(x), _scale_rows(weight), is_gradient=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        of_x = multiply_scaled(_scale_rows(gradient), _scale_rows(weight.t()), is_gradient=True)
        of_weight = multiply_scaled(_scale_rows(gradient.t()), _scale_rows(x.t()), is_gradient=True)
        return of_x, of_weight


Scaled = tuple[torch.Tensor, torch.Tensor]
"""Fp8 values, and the scale by which they must be multiplied."""


def cast_delayed(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> tuple[Scaled, Scaled, torch.Tensor]:
    """Return rows and columns of a matrix in fp8, and its largest absolute value."""
    return add_scale(*cast_fp8(x.contiguous(), scale, dtype))


def add_scale(
    values: torch.Tensor, transposed: torch.Tensor, figures: torch.Tensor
) -> tuple[Scaled, Scaled, torch.Tensor]:
    """Give the scale to results of a cast. A NaN or an infinity makes it NaN, so that clamping does not hide them."""
    scale = torch.where(figures[1].isfinite(), figures[0], torch.nan)
    return (values, scale), (transposed, scale), figures[1]


def _scale_tensor(x: torch.Tensor, dtype: torch.dtype) -> Scaled:
    return _divide(x, x.abs().amax(), dtype)


def _scale_rows(x: torch.Tensor) -> Scaled:
    return _divide(x, x.abs().amax(dim=1, keepdim=True), E4M3)


def _divide(x: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype) -> Scaled:
    """Return the values and their scale. A NaN or an infinity makes all values with that scale NaN."""
    limit = torch.finfo(dtype).max
    scale = (largest.float() / limit).clamp(min=SMALLEST_SCALE)
    return (x.float() / scale).clamp(-limit, limit).to(dtype).contiguous(), scale


def multiply_scaled(a: Scaled, b: Scaled, *, is_gradient: bool, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a @ b.T. Fast sums of the tensor cores have fewer bits: enough for outputs, not for gradients."""
    (values, scale), (other, other_scale) = a, b
    if not values.is_cuda:
        # On a CPU, fp32 products of the same values stand in for those of a GPU; autocast would round them to bf16.
        with torch.autocast(values.device.type, enabled=False):
            return ((values.float() @ other.float().t()) * (scale * other_scale.t())).to(dtype)
    return torch._scaled_mm(
        values,
        other.t(),
        scale_a=scale,
        scale_b=other_scale.t(),
        out_dtype=dtype,
        use_fast_accum=not is_gradient,
    )
