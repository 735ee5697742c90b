"""Batch norm with the sum and the ReLU that follow it in a residual network, as one operation on a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_HAS_TRITON = find_spec("triton") is not None


def normalize_channels(
    x: torch.Tensor, norm: nn.BatchNorm2d, added: torch.Tensor | None = None, *, rectifies: bool = True
) -> torch.Tensor:
    """Return the normalised values, plus `added` if given, and without the negative ones if `rectifies`."""
    if has_kernel(x, norm):
        norm.num_batches_tracked.add_(1)
        fused: torch.Tensor = _NormalizeChannels.apply(x, norm.weight, norm.bias, added, norm, rectifies)
        return fused
    y = norm(x)
    y = y if added is None else y + added
    return F.relu(y) if rectifies else y


def has_kernel(x: torch.Tensor, norm: nn.BatchNorm2d) -> bool:
    """Return whether the kernels can run: in training on a GPU, with channels last.

    Inside of a graph the compiler's own kernels are used, which it may join with others. Fake tensors, with which
    memory is measured, and other subclasses have no memory that a kernel could read.
    """
    is_trained = norm.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not (is_trained and x.is_cuda and _HAS_TRITON and type(x) is torch.Tensor):
        return False
    return norm.weight.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)


class _NormalizeChannels(torch.autograd.Function):
    """The operation on values (N, C, H, W) with the channels last in memory."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,  # noqa: ARG004
        bias: torch.Tensor,  # noqa: ARG004
        added: torch.Tensor | None,
        norm: nn.BatchNorm2d,
        rectifies: bool,
    ) -> torch.Tensor:
        # Triton is imported where it is used: it takes long, and the package exists on Linux only.
        from trainer.models import batch_norm_kernel as kernels  # noqa: PLC0415

        rows = _to_rows(x)
        statistics = kernels.measure_rows(rows, norm)
        y = kernels.apply_rows(rows, None if added is None else _to_rows(added), statistics, rectifies=rectifies)
        ctx.save_for_backward(rows, None if added is None else y)
        ctx.statistics, ctx.rectifies, ctx.shape = statistics, rectifies, x.shape
        return _from_rows(y, x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        from trainer.models import batch_norm_kernel as kernels  # noqa: PLC0415

        rows, y = ctx.saved_tensors
        slope = _to_rows(gradients[0].contiguous(memory_format=torch.channels_last))
        for_x, for_weight, for_bias, for_added = kernels.differentiate_rows(
            slope, rows, y, ctx.statistics, rectifies=ctx.rectifies
        )
        for_added = None if for_added is None else _from_rows(for_added, ctx.shape)
        return _from_rows(for_x, ctx.shape), for_weight, for_bias, for_added, None, None


def _to_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a view of (N, C, H, W) as (N x H x W, C)."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _from_rows(rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return rows.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
