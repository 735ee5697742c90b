"""Triton kernels of batch norm in training, with the sum and the ReLU that follow it. Only GPUs can run them.

Values are rows with the channels last. Each pass over them is one kernel: statistics and normalisation forward, the
sums of the gradients and the gradient itself backward. Sums of parts of the rows are written and added in a fixed
order, so that results are reproducible.

A kernel that sums begins with the last rows, which the convolution before it has just written, and ends with the first
ones, with which the next kernel begins: both find some of their values in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

_TILE_VALUES, _WARPS = 4096, 4
_SUM_TILE_VALUES, _SUM_WARPS, _SUM_STAGES = 4096, 4, 5
_MAX_COLUMNS = 128
_PROGRAMS = 264
"""Programs of a kernel that sums: two for each of a GPU's 132 processors."""
_FINISH_COLUMNS, _FINISH_PARTS, _FINISH_WARPS = 16, 512, 8
"""Tile of a kernel that adds the sums of all parts."""
_LAST_USE = tl.constexpr("evict_first")
"""How the cache treats values that nobody reads again soon."""


@dataclass(frozen=True)
class Statistics:
    """Tensors with a value for each channel, in fp32."""

    mean: torch.Tensor
    inverse: torch.Tensor
    """One divided by the standard deviation."""
    scale: torch.Tensor
    """With `offset`, the whole normalisation: value x scale + offset."""
    offset: torch.Tensor


def measure_rows(x: torch.Tensor, norm: Any) -> Statistics:
    """Return the statistics of rows and update the running ones of a batch norm."""
    rows, columns = x.shape
    tiles = _SumTiles(rows, columns)
    sums = torch.empty(2, tiles.parts, columns, dtype=torch.float32, device=x.device)
    _sum_values[tiles.grid](x, sums, rows, columns, **tiles.sizes)
    mean, inverse, scale, offset = torch.empty(4, columns, dtype=torch.float32, device=x.device)
    _finish_statistics[triton.cdiv(columns, _FINISH_COLUMNS),](
        x,
        sums,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        mean,
        inverse,
        scale,
        offset,
        rows,
        columns,
        tiles.parts,
        norm.momentum,
        norm.eps,
        block_parts=_FINISH_PARTS,
        block_columns=_FINISH_COLUMNS,
        num_warps=_FINISH_WARPS,
    )
    return Statistics(mean, inverse, scale, offset)


def apply_rows(x: torch.Tensor, added: torch.Tensor | None, to: Statistics, *, rectifies: bool) -> torch.Tensor:
    """Return the normalised rows, plus `added`, and without negative values if `rectifies`."""
    rows, columns = x.shape
    tiles, y = _Tiles(rows, columns), torch.empty_like(x)
    has_sum = added is not None
    _apply[tiles.grid](
        x, added if has_sum else x, y, to.scale, to.offset, rows, columns, has_sum=has_sum, rectifies=rectifies,
        **tiles.sizes,
    )  # fmt: skip
    return y


def differentiate_rows(
    slope: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None, given: Statistics, *, rectifies: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the gradients of rows, weight, bias and, if `y` is given, of what was added.

    `y` are the outputs if something was added: only they tell which values were negative.
    """
    rows, columns = x.shape
    tiles, sum_tiles, has_sum = _Tiles(rows, columns), _SumTiles(rows, columns), y is not None
    sums = torch.empty(2, sum_tiles.parts, columns, dtype=torch.float32, device=x.device)
    masked = torch.empty_like(x) if has_sum else None
    statistics = (given.mean, given.inverse, given.scale, given.offset)
    _sum_slopes[sum_tiles.grid](
        slope, x, y if has_sum else x, masked if has_sum else x, *statistics, sums, rows, columns,
        has_sum=has_sum, rectifies=rectifies, **sum_tiles.sizes,
    )  # fmt: skip
    for_bias, for_weight = torch.empty(2, columns, dtype=torch.float32, device=x.device)
    _finish_slopes[triton.cdiv(columns, _FINISH_COLUMNS),](
        sums, for_bias, for_weight, columns, sum_tiles.parts, block_parts=_FINISH_PARTS, block_columns=_FINISH_COLUMNS,
        num_warps=_FINISH_WARPS,
    )  # fmt: skip
    for_x = torch.empty_like(x)
    _apply_slopes[tiles.grid](
        masked if has_sum else slope, x, for_x, *statistics, for_bias, for_weight, rows, columns,
        rectifies=rectifies and not has_sum, **tiles.sizes,
    )  # fmt: skip
    return for_x, for_weight, for_bias, masked


class _Tiles:
    """How programs divide rows and columns; each has one tile."""

    def __init__(self, rows: int, columns: int) -> None:
        width = min(_MAX_COLUMNS, triton.next_power_of_2(columns))
        height = _TILE_VALUES // width
        self.grid = (triton.cdiv(rows, height), triton.cdiv(columns, width))
        self.sizes = {"block_rows": height, "block_columns": width, "num_warps": _WARPS}


class _SumTiles:
    """How programs that sum divide rows and columns; each has every so many tiles."""

    def __init__(self, rows: int, columns: int) -> None:
        width = min(_MAX_COLUMNS, triton.next_power_of_2(columns))
        height = _SUM_TILE_VALUES // width
        across = triton.cdiv(columns, width)
        self.parts = min(triton.cdiv(rows, height), max(1, _PROGRAMS // across))
        self.grid = (across, self.parts)
        self.sizes = {"block_rows": height, "block_columns": width, "stages": _SUM_STAGES, "num_warps": _SUM_WARPS}


@triton.jit
def _sum_values(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    x, sums, rows, columns, block_rows: tl.constexpr, block_columns: tl.constexpr, stages: tl.constexpr
):
    part = tl.program_id(1)
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    # Distances from the first row: squares of values far from zero would lose the digits of their variance.
    origin = tl.load(x + column, mask=is_column, other=0.0).to(tl.float32)
    total = tl.zeros((block_rows, block_columns), tl.float32)
    squares = tl.zeros((block_rows, block_columns), tl.float32)
    last = tl.cdiv(rows, block_rows) - 1
    for tile in tl.range(part, last + 1, tl.num_programs(1), num_stages=stages):
        row = (last - tile) * block_rows + tl.arange(0, block_rows)
        inside = (row < rows)[:, None] & is_column[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - origin[None, :]
        value = tl.where(inside, value, 0.0)
        total += value
        squares += value * value
    place = part * columns + column
    tl.store(sums + place, tl.sum(total, 0), mask=is_column)
    tl.store(sums + tl.num_programs(1) * columns + place, tl.sum(squares, 0), mask=is_column)


@triton.jit
def _add_parts(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    sums, column, columns, parts, block_parts: tl.constexpr, block_columns: tl.constexpr
):
    total = tl.zeros((block_parts, block_columns), tl.float32)
    for first in range(0, parts, block_parts):
        part = first + tl.arange(0, block_parts)
        inside = (part < parts)[:, None] & (column < columns)[None, :]
        total += tl.load(sums + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _finish_statistics(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    x,
    sums,
    weight,
    bias,
    running_mean,
    running_variance,
    means,
    inverses,
    scales,
    offsets,
    rows,
    columns,
    parts,
    momentum,
    eps,
    block_parts: tl.constexpr,
    block_columns: tl.constexpr,
):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    total = _add_parts(sums, column, columns, parts, block_parts, block_columns)
    squares = _add_parts(sums + parts * columns, column, columns, parts, block_parts, block_columns)
    distance = total / rows
    mean = tl.load(x + column, mask=inside, other=0.0).to(tl.float32) + distance
    variance = tl.maximum(squares / rows - distance * distance, 0.0)
    inverse = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0) * inverse
    tl.store(means + column, mean, mask=inside)
    tl.store(inverses + column, inverse, mask=inside)
    tl.store(scales + column, scale, mask=inside)
    tl.store(offsets + column, tl.load(bias + column, mask=inside, other=0.0) - mean * scale, mask=inside)
    old_mean = tl.load(running_mean + column, mask=inside, other=0.0)
    old_variance = tl.load(running_variance + column, mask=inside, other=0.0)
    # torch keeps the unbiased variance.
    unbiased = variance * rows / tl.maximum(rows - 1, 1)
    tl.store(running_mean + column, old_mean + (mean - old_mean) * momentum, mask=inside)
    tl.store(running_variance + column, old_variance + (unbiased - old_variance) * momentum, mask=inside)


@triton.jit
def _apply(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    x,
    added,
    y,
    scales,
    offsets,
    rows,
    columns,
    has_sum: tl.constexpr,
    rectifies: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    inside = (row < rows)[:, None] & is_column[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    scale = tl.load(scales + column, mask=is_column, other=0.0)
    offset = tl.load(offsets + column, mask=is_column, other=0.0)
    value = (
        tl.load(x + at, mask=inside, other=0.0, eviction_policy=_LAST_USE).to(tl.float32) * scale[None, :]
        + offset[None, :]
    )
    if has_sum:
        value += tl.load(added + at, mask=inside, other=0.0, eviction_policy=_LAST_USE).to(tl.float32)
    if rectifies:
        # Unlike a maximum, this keeps a NaN.
        value = tl.where(value < 0.0, 0.0, value)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _sum_slopes(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes,
    x,
    y,
    masked,
    means,
    inverses,
    scales,
    offsets,
    sums,
    rows,
    columns,
    has_sum: tl.constexpr,
    rectifies: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    stages: tl.constexpr,
):
    part = tl.program_id(1)
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    mean = tl.load(means + column, mask=is_column, other=0.0)[None, :]
    inverse = tl.load(inverses + column, mask=is_column, other=0.0)[None, :]
    scale = tl.load(scales + column, mask=is_column, other=0.0)[None, :]
    offset = tl.load(offsets + column, mask=is_column, other=0.0)[None, :]
    total = tl.zeros((block_rows, block_columns), tl.float32)
    products = tl.zeros((block_rows, block_columns), tl.float32)
    last = tl.cdiv(rows, block_rows) - 1
    for tile in tl.range(part, last + 1, tl.num_programs(1), num_stages=stages):
        row = (last - tile) * block_rows + tl.arange(0, block_rows)
        inside = (row < rows)[:, None] & is_column[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        slope = tl.load(slopes + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if has_sum:
            if rectifies:
                output = tl.load(y + at, mask=inside, other=0.0, eviction_policy=_LAST_USE).to(tl.float32)
                slope = tl.where(output > 0.0, slope, 0.0)
            tl.store(masked + at, slope.to(masked.dtype.element_ty), mask=inside)
        elif rectifies:
            slope = tl.where(value * scale + offset > 0.0, slope, 0.0)
        total += slope
        products += slope * (value - mean) * inverse
    place = part * columns + column
    tl.store(sums + place, tl.sum(total, 0), mask=is_column)
    tl.store(sums + tl.num_programs(1) * columns + place, tl.sum(products, 0), mask=is_column)


@triton.jit
def _finish_slopes(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    sums, for_bias, for_weight, columns, parts, block_parts: tl.constexpr, block_columns: tl.constexpr
):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    total = _add_parts(sums, column, columns, parts, block_parts, block_columns)
    products = _add_parts(sums + parts * columns, column, columns, parts, block_parts, block_columns)
    tl.store(for_bias + column, total, mask=inside)
    tl.store(for_weight + column, products, mask=inside)


@triton.jit
def _apply_slopes(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes,
    x,
    for_x,
    means,
    inverses,
    scales,
    offsets,
    for_bias,
    for_weight,
    rows,
    columns,
    rectifies: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    inside = (row < rows)[:, None] & is_column[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mean = tl.load(means + column, mask=is_column, other=0.0)[None, :]
    inverse = tl.load(inverses + column, mask=is_column, other=0.0)[None, :]
    scale = tl.load(scales + column, mask=is_column, other=0.0)[None, :]
    offset = tl.load(offsets + column, mask=is_column, other=0.0)[None, :]
    mean_slope = tl.load(for_bias + column, mask=is_column, other=0.0)[None, :] / rows
    mean_product = tl.load(for_weight + column, mask=is_column, other=0.0)[None, :] / rows
    slope = tl.load(slopes + at, mask=inside, other=0.0, eviction_policy=_LAST_USE).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0, eviction_policy=_LAST_USE).to(tl.float32)
    if rectifies:
        slope = tl.where(value * scale + offset > 0.0, slope, 0.0)
    result = scale * (slope - mean_slope - (value - mean) * inverse * mean_product)
    tl.store(for_x + at, result.to(for_x.dtype.element_ty), mask=inside)
