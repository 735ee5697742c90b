"""RMS norm of the residual stream in compiled graphs for a GPU, with a backward pass of one kernel.

The stream goes on unchanged beside its normalised values, so it has two gradients. One pass adds them and sums those of
the norm's weight.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

_HAS_TRITON = find_spec("triton") is not None


def can_fuse(x: torch.Tensor, norm: nn.RMSNorm) -> bool:
    """Return whether the kernel can run: in a graph for a GPU, on a stream in bf16 and a whole weight."""
    if not (torch.compiler.is_compiling() and x.is_cuda and x.dtype == torch.bfloat16 and _HAS_TRITON):
        return False
    # Tensor parallelism gives other types, and splits sequences before norms.
    return type(norm) is nn.RMSNorm and type(norm.weight) is nn.Parameter


def add_and_normalize(x: torch.Tensor, y: torch.Tensor | None, norm: nn.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + y, or x alone, and its normalised values."""
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    total, normalized = _AddAndNormalize.apply(x, y, norm.weight, eps)
    return total, normalized


class _AddAndNormalize(torch.autograd.Function):
    """The sum of x and y, and its RMS norm."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.view_as(x) if y is None else x + y
        values = total.float()
        inverse = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(total, inverse, weight)
        ctx.has_sum = y is not None
        return total, (values * inverse * weight).to(total.dtype)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor, norm_slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total, inverse, weight = ctx.saved_tensors
        for_total, for_weight = differentiate_rms_norm(slope, norm_slope, total, inverse, weight)
        return for_total, for_total if ctx.has_sum else None, for_weight.to(weight.dtype), None


@torch.library.custom_op("muster::differentiate_rms_norm", mutates_args=())
def differentiate_rms_norm(
    slope: torch.Tensor, norm_slope: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x, which is used as it is and normalised, and that of the weight in fp32."""
    if not x.is_cuda:
        values, weighted = x.float() * inverse, norm_slope.float() * weight
        for_x = (weighted - values * (weighted * values).mean(-1, keepdim=True)) * inverse + slope.float()
        return for_x.to(x.dtype), (norm_slope.float() * values).flatten(0, -2).sum(0)
    # Triton is imported where it is used: it takes long, and the package exists on Linux only.
    from trainer.models.residual_norm_kernel import differentiate_rows  # noqa: PLC0415

    operands = (slope.contiguous(), norm_slope.contiguous(), x.contiguous(), inverse.contiguous())
    return differentiate_rows(*operands, weight)


@differentiate_rms_norm.register_fake
def _describe(
    slope: torch.Tensor,  # noqa: ARG001 - the parameters of the operation
    norm_slope: torch.Tensor,  # noqa: ARG001
    x: torch.Tensor,
    inverse: torch.Tensor,  # noqa: ARG001
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), weight.new_empty(
        weight.shape, dtype=torch.float32
    )
