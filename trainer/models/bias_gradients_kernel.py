"""Triton kernels of gradients that are summed over all tokens while they are written. Only GPUs can run them.

Sums of parts of the rows are written and added in a fixed order, so that results are reproducible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_GELU_TILE, _JOIN_TILE = (8, 512), (32, 128)
_PROGRAMS = 528
"""Programs of a kernel: four for each of a GPU's 132 processors."""
_NORM_PROGRAMS, _NORM_WARPS, _NORM_STAGES = 528, 2, 3


def differentiate_gelu(slope: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x from that of its GELU, and its sums over all rows."""
    for_x = torch.empty_like(x)
    sums = _sum_tiles(slope, x, for_x, 0, _GELU_TILE, is_gelu=True)
    return for_x, sums.sum(0)


def join_columns(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one tensor with the columns of all parts, and its sums over all rows."""
    joined = parts[0].new_empty(*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
    sums, first = [], 0
    for part in parts:
        sums.append(_sum_tiles(part, part, joined, first, _JOIN_TILE, is_gelu=False).sum(0))
        first += part.shape[-1]
    return joined, torch.cat(sums)


def differentiate_norm(  # noqa: PLR0913, PLR0917
    slope: torch.Tensor,
    norm_slope: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x, which is used as it is and normalised, and four rows of sums over all others.

    They are the sums for the norm's weight and bias, of the gradient of x, and of `slope`.
    """
    columns = x.shape[-1]
    rows, for_x = x.numel() // columns, torch.empty_like(x)
    programs = min(rows, _NORM_PROGRAMS)
    sums = torch.empty(programs, 4, columns, dtype=torch.float32, device=x.device)
    _differentiate_norm_rows[programs,](
        slope,
        norm_slope,
        x,
        mean,
        inverse,
        weight,
        for_x,
        sums,
        rows,
        columns,
        block_columns=triton.next_power_of_2(columns),
        stages=_NORM_STAGES,
        num_warps=_NORM_WARPS,
    )
    return for_x, sums.sum(0)


def _sum_tiles(  # noqa: PLR0913
    slope: torch.Tensor, x: torch.Tensor, to: torch.Tensor, first: int, tile: tuple[int, int], *, is_gelu: bool
) -> torch.Tensor:
    """Write the values to columns of `to`, from `first` on, and return their sums over parts of the rows."""
    columns, (height, width) = slope.shape[-1], tile
    rows, across = slope.numel() // columns, triton.cdiv(columns, width)
    parts = min(triton.cdiv(rows, height), max(1, _PROGRAMS // across))
    sums = torch.empty(parts, columns, dtype=torch.float32, device=slope.device)
    _write_tiles[across, parts](
        slope, x, to, sums, rows, columns, to.shape[-1], first, is_gelu=is_gelu, block_rows=height,
        block_columns=width,
    )  # fmt: skip
    return sums


@triton.jit
def _write_tiles(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes,
    x,
    to,
    sums,
    rows,
    columns,
    width,
    first,
    is_gelu: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    total = tl.zeros((block_rows, block_columns), tl.float32)
    for start in range(tl.program_id(1) * block_rows, rows, tl.num_programs(1) * block_rows):
        row = (start + tl.arange(0, block_rows)).to(tl.int64)[:, None]
        inside = (row < rows) & is_column[None, :]
        slope = tl.load(slopes + row * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if is_gelu:
            value = tl.load(x + row * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
            # tanh(z) is 2 share - 1, and z is the root of 2 / pi times (value + 0.044715 value^3).
            square = value * value
            share = tl.sigmoid(1.5957691216057308 * value * (1.0 + 0.044715 * square))
            growth = 1.5957691216057308 * (1.0 + 0.134145 * square)
            slope *= share * (1.0 + value * (1.0 - share) * growth)
        tl.store(to + row * width + first + column[None, :], slope.to(to.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(1) * columns + column, tl.sum(total, 0), mask=is_column)


@triton.jit
def _differentiate_norm_rows(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes,
    norm_slopes,
    x,
    means,
    inverses,
    weights,
    for_x,
    sums,
    rows,
    columns,
    block_columns: tl.constexpr,
    stages: tl.constexpr,
):
    column = tl.arange(0, block_columns)
    inside = column < columns
    weight = tl.load(weights + column, mask=inside, other=0.0).to(tl.float32)
    for_weight = tl.zeros((block_columns,), tl.float32)
    for_bias = tl.zeros((block_columns,), tl.float32)
    of_x = tl.zeros((block_columns,), tl.float32)
    of_slope = tl.zeros((block_columns,), tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        at = (row + tl.zeros((block_columns,), tl.int64)) * columns + column
        slope = tl.load(slopes + at, mask=inside, other=0.0).to(tl.float32)
        norm_slope = tl.load(norm_slopes + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row)
        value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - tl.load(means + row)) * inverse
        value = tl.where(inside, value, 0.0)
        weighted = norm_slope * weight
        centred = weighted - tl.sum(weighted, 0) / columns - value * (tl.sum(weighted * value, 0) / columns)
        result = centred * inverse + slope
        tl.store(for_x + at, result.to(for_x.dtype.element_ty), mask=inside)
        for_weight += norm_slope * value
        for_bias += norm_slope
        of_x += result
        of_slope += slope
    to = sums + tl.program_id(0) * 4 * columns + column
    tl.store(to, for_weight, mask=inside)
    tl.store(to + columns, for_bias, mask=inside)
    tl.store(to + 2 * columns, of_x, mask=inside)
    tl.store(to + 3 * columns, of_slope, mask=inside)
