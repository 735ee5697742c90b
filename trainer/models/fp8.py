"""Linear layers whose products are fp8, in which GPUs since Hopper and Ada compute twice as fast as in bf16.

An fp8 value has 8 bits, so each operand of a product is divided by a scale that maps its largest value to the largest
one of the format, and the result is multiplied by both scales. A scale is derived from the values themselves in every
product ("dynamic"), so it has no history to checkpoint. Operands are rounded to e4m3 (3 bits of mantissa); gradients
that share one scale to e5m2, which has fewer digits and a wider range. Sums, outputs and stored weights are not fp8.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MULTIPLE = 16
"""Fp8 products need sizes that are multiples of this number."""
_SMALLEST_SCALE = 1e-12
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Fp8Linear(nn.Linear):
    """A linear layer with fp8 products. `use_fp8` turns torch's own layers into it."""

    has_row_scales: bool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply_fp8(x, self.weight, self.bias, has_row_scales=self.has_row_scales)


def use_fp8(layer: nn.Linear, *, has_row_scales: bool) -> None:
    """Let a linear layer compute in fp8, with a scale for each row of an operand or one for all of it."""
    layer.__class__ = Fp8Linear
    layer.has_row_scales = has_row_scales


def multiply_fp8(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, has_row_scales: bool
) -> torch.Tensor:
    """Return `F.linear(x, weight, bias)` in bf16, computed in fp8, as are the gradients of `x` and `weight`."""
    rows = x.to(torch.bfloat16).flatten(0, -2)
    count = rows.shape[0]
    # Rows of zeros change no sum and no scale.
    rows = F.pad(rows, (0, 0, 0, -count % MULTIPLE)) if count % MULTIPLE else rows
    product = _RowScaledProduct if has_row_scales else _TensorScaledProduct
    y: torch.Tensor = product.apply(rows, weight.to(torch.bfloat16))
    y = y[:count].unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(y.dtype)


class _TensorScaledProduct(torch.autograd.Function):
    """x @ weight.T with one scale for each operand: its transpose has the same fp8 values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x8, weight8 = _scale_tensor(x, _E4M3), _scale_tensor(weight, _E4M3)
        ctx.save_for_backward(*x8, *weight8)
        return _multiply(x8, weight8, is_gradient=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        values, scale = _scale_tensor(gradient, _E5M2)
        of_x = _multiply((values, scale), (weight.t().contiguous(), weight_scale), is_gradient=True)
        of_weight = _multiply((values.t().contiguous(), scale), (x.t().contiguous(), x_scale), is_gradient=True)
        return of_x, of_weight


class _RowScaledProduct(torch.autograd.Function):
    """x @ weight.T with a scale for each row of an operand, which keeps a large value from spoiling other rows.

    In the gradients' products, columns become rows, so operands are scaled anew.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(_scale_rows(x), _scale_rows(weight), is_gradient=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        of_x = _multiply(_scale_rows(gradient), _scale_rows(weight.t()), is_gradient=True)
        of_weight = _multiply(_scale_rows(gradient.t()), _scale_rows(x.t()), is_gradient=True)
        return of_x, of_weight


Scaled = tuple[torch.Tensor, torch.Tensor]
"""Fp8 values, and the scale by which they must be multiplied."""


def _scale_tensor(x: torch.Tensor, dtype: torch.dtype) -> Scaled:
    return _divide(x, x.abs().amax(), dtype)


def _scale_rows(x: torch.Tensor) -> Scaled:
    return _divide(x, x.abs().amax(dim=1, keepdim=True), _E4M3)


def _divide(x: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype) -> Scaled:
    """Return the values and their scale. A NaN or an infinity makes all values with that scale NaN."""
    limit = torch.finfo(dtype).max
    scale = (largest.float() / limit).clamp(min=_SMALLEST_SCALE)
    return (x.float() / scale).clamp(-limit, limit).to(dtype).contiguous(), scale


def _multiply(a: Scaled, b: Scaled, *, is_gradient: bool) -> torch.Tensor:
    """Return a @ b.T in bf16. Fast sums of the tensor cores have fewer bits: enough for outputs, not for gradients."""
    (values, scale), (other, other_scale) = a, b
    if not values.is_cuda:
        # On a CPU, fp32 products of the same values stand in for those of a GPU; autocast would round them to bf16.
        with torch.autocast(values.device.type, enabled=False):
            return ((values.float() @ other.float().t()) * (scale * other_scale.t())).to(torch.bfloat16)
    return torch._scaled_mm(
        values,
        other.t(),
        scale_a=scale,
        scale_b=other_scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=not is_gradient,
    )
