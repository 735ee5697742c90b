"""Triton kernels of a maximum over 3x3 pixels with a stride of 2, channels last. Only GPUs can run them.

torch stores the place of each maximum in 8 bytes, these kernels in one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_VALUES = 1024


def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima of images (N, H, W, C), and the place of each among its 9 pixels."""
    samples, height, width, channels = x.shape
    shape = (samples, (height + 1) // 2, (width + 1) // 2, channels)
    y, places = x.new_empty(shape), x.new_empty(shape, dtype=torch.int8)
    sizes = {"channels": channels, "block_values": _BLOCK_VALUES}
    _pool_row[_make_grid(y)](x, y, places, height, width, shape[1], shape[2], **sizes)
    return y, places


def differentiate_pool(slope: torch.Tensor, places: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the gradient of images (N, H, W, C) from that of their maxima."""
    _, height, width, channels = shape
    for_x = slope.new_empty(shape)
    sizes = {"channels": channels, "block_values": _BLOCK_VALUES}
    _differentiate_row[_make_grid(for_x)](slope, places, for_x, height, width, slope.shape[1], slope.shape[2], **sizes)
    return for_x


def _make_grid(images: torch.Tensor) -> tuple[int, int]:
    """Return a program for each row and part of it, so that only columns and channels are computed from an index."""
    samples, height, width, channels = images.shape
    return samples * height, triton.cdiv(width * channels, _BLOCK_VALUES)


@triton.jit
def _pool_row(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    x, y, places, height, width, out_height, out_width, channels: tl.constexpr, block_values: tl.constexpr
):
    sample = tl.program_id(0).to(tl.int64) // out_height
    row = tl.program_id(0) % out_height
    at = tl.program_id(1) * block_values + tl.arange(0, block_values)
    inside = at < out_width * channels
    column, channel = at // channels, at % channels
    best = tl.full((block_values,), float("-inf"), tl.float32)
    place = tl.zeros((block_values,), tl.int32)
    for k in tl.static_range(9):
        h = 2 * row - 1 + k // 3
        w = 2 * column - 1 + k % 3
        exists = inside & (w >= 0) & (w < tl.where((h >= 0) & (h < height), width, 0))
        line = x + (sample * height + h) * width * channels
        value = tl.load(line + w * channels + channel, mask=exists, other=float("-inf")).to(tl.float32)
        # The first of equal values wins, and a NaN always, as in torch.
        wins = (value > best) | (value != value)  # noqa: PLR0124
        best = tl.where(wins, value, best)
        place = tl.where(wins, k, place)
    start = (sample * out_height + row) * out_width * channels
    tl.store(y + start + at, best.to(y.dtype.element_ty), mask=inside)
    tl.store(places + start + at, place.to(tl.int8), mask=inside)


@triton.jit
def _differentiate_row(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes, places, for_x, height, width, out_height, out_width, channels: tl.constexpr, block_values: tl.constexpr
):
    sample = tl.program_id(0).to(tl.int64) // height
    row = tl.program_id(0) % height
    at = tl.program_id(1) * block_values + tl.arange(0, block_values)
    inside = at < width * channels
    column, channel = at // channels, at % channels
    total = tl.zeros((block_values,), tl.float32)
    # A pixel with an odd index is in two windows, one with an even index in one.
    for down in tl.static_range(2):
        for right in tl.static_range(2):
            h = row // 2 + down
            w = column // 2 + right
            limit = tl.where((h < out_height) & (row % 2 >= down), out_width, 0)
            exists = inside & (w < limit) & (column % 2 >= right)
            start = (sample * out_height + h) * out_width * channels
            place = tl.load(places + start + w * channels + channel, mask=exists, other=-1).to(tl.int32)
            slope = tl.load(slopes + start + w * channels + channel, mask=exists, other=0.0).to(tl.float32)
            is_maximum = place == (row - 2 * h + 1) * 3 + column - 2 * w + 1
            total += tl.where(exists & is_maximum, slope, 0.0)
    start = (sample * height + row) * width * channels
    tl.store(for_x + start + at, total.to(for_x.dtype.element_ty), mask=inside)
