"""The first convolution of a residual block, whose backward pass adds the gradient of the shortcut in its product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.batch_norm import has_kernel

_HALF = (torch.bfloat16, torch.float16)


def fork(x: torch.Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the convolution of x, and x for the shortcut.

    A 1x1 convolution is a product of matrices, and a product can add to values that exist: so the sum of the two
    gradients of x needs no pass over memory of its own.
    """
    if not can_fork(x, conv, norm):
        return conv(x), x
    convolved, shortcut = _Fork.apply(x, conv.weight)
    return convolved, shortcut


def can_fork(x: torch.Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    """Return whether the convolution is a product, and the kernels of batch norm run in this block."""
    is_plain = type(conv) is nn.Conv2d and conv.bias is None
    is_product = is_plain and conv.kernel_size == (1, 1) and conv.stride == (1, 1)
    return is_product and x.dtype in _HALF and x.requires_grad and has_kernel(x, norm)


class _Fork(torch.autograd.Function):
    """A 1x1 convolution of values (N, C, H, W) with the channels last in memory, and the values themselves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stored, weight = weight.dtype, weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.stored = stored
        return F.conv2d(x, weight), x

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor, shortcut: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        arguments = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        for_weight = torch.ops.aten.convolution_backward(slope, x, weight, *arguments)[1]
        # Whatever else has used this gradient is before `slope` in the backward pass, so it may be overwritten.
        for_x = shortcut.contiguous(memory_format=torch.channels_last)
        rows = for_x.permute(0, 2, 3, 1).view(-1, x.shape[1])
        rows.addmm_(slope.permute(0, 2, 3, 1).reshape(-1, weight.shape[0]), weight.flatten(1))
        return for_x, for_weight.to(ctx.stored)
