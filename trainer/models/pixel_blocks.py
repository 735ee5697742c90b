"""Images of bytes as normalised blocks of 2x2 pixels, the input of a ResNet's stem on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F

BLOCK_VALUES = 16
"""Values of a block: 12, and 4 zeros for the alignment that matrix units need."""
_HAS_TRITON = find_spec("triton") is not None
_HALF = (torch.bfloat16, torch.float16)


def make_blocks(images: torch.Tensor) -> torch.Tensor:
    """Return the blocks of images (N, 3, H, W) as 16 channels, with a border of 2 blocks before them and 1 after."""
    return F.pad(F.pixel_unshuffle(images, 2), (2, 1, 2, 1, 0, BLOCK_VALUES - 12))


def normalize_blocks(images: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return the blocks of normalised images in the format of autocast, channels last, in one pass."""
    # Triton is imported where it is used: it takes long, and the package exists on Linux only.
    from trainer.models.pixel_blocks_kernel import write_blocks  # noqa: PLC0415

    return write_blocks(images.contiguous(), mean, std, torch.get_autocast_dtype(images.device.type))


def has_kernel(images: torch.Tensor) -> bool:
    """Return whether the kernel can run: on bytes in even rows and columns on a GPU, outside of compiled graphs.

    Fake tensors, with which memory is measured, and other subclasses have no memory that a kernel could read.
    """
    if not images.is_cuda or not _HAS_TRITON or torch.compiler.is_compiling() or type(images) is not torch.Tensor:
        return False
    is_half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in _HALF
    return is_half and images.dtype == torch.uint8 and images.shape[-2] % 2 == images.shape[-1] % 2 == 0
