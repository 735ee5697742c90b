"""The maximum over 3x3 pixels with a stride of 2, after the stem of a residual network."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

_HAS_TRITON = find_spec("triton") is not None


def pool_maxima(x: torch.Tensor) -> torch.Tensor:
    """Return the maximum around every second pixel of images (N, C, H, W)."""
    if has_kernel(x):
        pooled: torch.Tensor = _PoolMaxima.apply(x)
        return pooled
    return F.max_pool2d(x, 3, stride=2, padding=1)


def has_kernel(x: torch.Tensor) -> bool:
    """Return whether the kernels can run: on a GPU, with channels last, outside of the compiler's graphs.

    Fake tensors, with which memory is measured, and other subclasses have no memory that a kernel could read.
    """
    if not x.is_cuda or not _HAS_TRITON or torch.compiler.is_compiling() or type(x) is not torch.Tensor:
        return False
    return x.requires_grad and x.is_contiguous(memory_format=torch.channels_last)


class _PoolMaxima(torch.autograd.Function):
    """The operation on values (N, C, H, W) with the channels last in memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        # Triton is imported where it is used: it takes long, and the package exists on Linux only.
        from trainer.models.max_pool_kernel import pool  # noqa: PLC0415

        images = x.permute(0, 2, 3, 1)
        y, places = pool(images)
        ctx.save_for_backward(places)
        ctx.shape = images.shape
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        from trainer.models.max_pool_kernel import differentiate_pool  # noqa: PLC0415

        (places,) = ctx.saved_tensors
        slope = gradients[0].permute(0, 2, 3, 1).contiguous()
        return differentiate_pool(slope, places, ctx.shape).permute(0, 3, 1, 2)
