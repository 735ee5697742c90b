"""Triton kernels of gradients that are summed over all tokens while they are written. Only GPUs can run them.

Sums of parts of the rows are written and added in a fixed order, so that results are reproducible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_GELU_TILE, _JOIN_TILE = (8, 512), (32, 128)
_GELU_STAGES, _JOIN_STAGES = 2, 1
_PROGRAMS = 528
"""Programs of a kernel: four for each of a GPU's 132 processors."""
_ACTIVATION_BLOCK = 1024
_NORM_PROGRAMS, _NORM_WARPS, _NORM_STAGES = 528, 2, 3


def activate(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of x."""
    activated, count = torch.empty_like(x), x.numel()
    _activate[triton.cdiv(count, _ACTIVATION_BLOCK),](x, activated, count, block=_ACTIVATION_BLOCK)
    return activated


def differentiate_gelu(slope: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x from that of its GELU, and its sums over all rows."""
    for_x = torch.empty_like(x)
    sums = _allocate_sums(slope, slope.shape[-1], slope.shape[-1], _GELU_TILE)
    _write_columns(slope, x, for_x, sums, 0, _GELU_TILE, _GELU_STAGES, is_gelu=True)
    return for_x, sums.sum(0)


def join_columns(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one tensor with the columns of all parts, and its sums over all rows."""
    widths = [part.shape[-1] for part in parts]
    joined = parts[0].new_empty(*parts[0].shape[:-1], sum(widths))
    sums = _allocate_sums(parts[0], sum(widths), max(widths), _JOIN_TILE)
    first = 0
    for part, width in zip(parts, widths, strict=True):
        _write_columns(part, part, joined, sums, first, _JOIN_TILE, _JOIN_STAGES, is_gelu=False)
        first += width
    return joined, sums.sum(0)


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


def _allocate_sums(slope: torch.Tensor, columns: int, widest: int, tile: tuple[int, int]) -> torch.Tensor:
    """Return memory for the sums of columns over parts of the rows; as many parts as programs work next to each other.

    A kernel writes at most `widest` columns.
    """
    height, width = tile
    rows = slope.numel() // slope.shape[-1]
    parts = min(triton.cdiv(rows, height), max(1, _PROGRAMS // triton.cdiv(widest, width)))
    return torch.empty(parts, columns, dtype=torch.float32, device=slope.device)


def _write_columns(  # noqa: PLR0913, PLR0917
    slope: torch.Tensor,
    x: torch.Tensor,
    to: torch.Tensor,
    sums: torch.Tensor,
    first: int,
    tile: tuple[int, int],
    stages: int,
    *,
    is_gelu: bool,
) -> None:
    """Write values to columns of `to`, from `first` on, and their sums over parts of the rows to those of `sums`."""
    columns, (height, width) = slope.shape[-1], tile
    _write_tiles[triton.cdiv(columns, width), len(sums)](
        slope, x, to, sums, slope.numel() // columns, columns, to.shape[-1], first, is_gelu=is_gelu, block_rows=height,
        block_columns=width, stages=stages,
    )  # fmt: skip


@triton.jit
def _activate(x, to, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(to + at, (value * _find_share(value, value * value)).to(to.dtype.element_ty), mask=at < count)


@triton.jit
def _find_share(value, square):  # type: ignore[no-untyped-def]
    """Return the factor by which GELU multiplies a value: the sigmoid of a polynomial.

    It is 1 / (1 + 2^-p). The square of an inverse root takes fewer instructions than a division.
    """
    inverse_root = tl.rsqrt(1.0 + tl.exp2(value * (-2.302208198144325 - 0.1029432395800235 * square)))
    return inverse_root * inverse_root


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
    stages: tl.constexpr,
):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    is_column = column < columns
    total = tl.zeros((block_rows, block_columns), tl.float32)
    step = tl.num_programs(1) * block_rows
    for start in tl.range(tl.program_id(1) * block_rows, rows, step, num_stages=stages):
        row = (start + tl.arange(0, block_rows)).to(tl.int64)[:, None]
        inside = (row < rows) & is_column[None, :]
        slope = tl.load(slopes + row * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if is_gelu:
            value = tl.load(x + row * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
            # tanh(z) is 2 share - 1, and z is the root of 2 / pi times (value + 0.044715 value^3).
            square = value * value
            share = _find_share(value, square)
            growth = 1.5957691216057308 + 0.21406444881780073 * square
            slope *= share * (1.0 + value * (1.0 - share) * growth)
        tl.store(to + row * width + first + column[None, :], slope.to(to.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(1) * width + first + column, tl.sum(total, 0), mask=is_column)


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
