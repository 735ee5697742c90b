"""A Triton kernel that normalises images of bytes and orders them as blocks of 2x2 pixels. Only GPUs can run it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BEFORE, _AFTER = 2, 1
"""Blocks of zeros before and after each row and column."""
_BLOCK_CHANNELS = 16
_BLOCK_VALUES = 2048


def write_blocks(images: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return blocks (N, 16, H / 2 + 3, W / 2 + 3), channels last, of images (N, 3, H, W)."""
    samples, colours, height, width = images.shape
    rows, columns = (size // 2 + _BEFORE + _AFTER for size in (height, width))
    blocks = torch.empty(samples, rows, columns, _BLOCK_CHANNELS, dtype=dtype, device=images.device)
    grid = samples * rows, triton.cdiv(columns * _BLOCK_CHANNELS, _BLOCK_VALUES)
    _write_row[grid](
        images, mean, std, blocks, height, width, rows, columns, colours=colours, before=_BEFORE,
        channels=_BLOCK_CHANNELS, block_values=_BLOCK_VALUES,
    )  # fmt: skip
    return blocks.permute(0, 3, 1, 2)


@triton.jit
def _write_row(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    images,
    means,
    deviations,
    blocks,
    height,
    width,
    rows,
    columns,
    colours: tl.constexpr,
    before: tl.constexpr,
    channels: tl.constexpr,
    block_values: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64) // rows
    row = tl.program_id(0) % rows
    at = tl.program_id(1) * block_values + tl.arange(0, block_values)
    column, channel = at // channels, at % channels
    # A block has the 4 pixels of the first colour first, and in each colour the upper ones.
    colour, h = channel // 4, 2 * (row - before) + channel % 4 // 2
    w = 2 * (column - before) + channel % 2
    exists = (colour < colours) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    place = ((sample * colours + colour) * height + h) * width + w
    value = tl.load(images + place, mask=exists, other=0).to(tl.float32)
    mean = tl.load(means + colour, mask=exists, other=0.0)
    deviation = tl.load(deviations + colour, mask=exists, other=1.0)
    value = tl.where(exists, (value - mean) / deviation, 0.0)
    start = tl.program_id(0).to(tl.int64) * columns * channels
    tl.store(blocks + start + at, value.to(blocks.dtype.element_ty), mask=at < columns * channels)
