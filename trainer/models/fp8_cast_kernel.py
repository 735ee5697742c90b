"""Triton kernels that cast a matrix to fp8: 4 bytes are moved for each value. Only GPUs can run them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.models.fp8_formats import E4M3, SMALLEST_SCALE, Cast

_TILE_ROWS, _TILE_COLUMNS, _TILE_WARPS = 64, 128, 4
SEARCH_PROGRAMS, SEARCH_VALUES, SEARCH_WARPS = 512, 4096, 8
_SMALLEST_SCALE: tl.constexpr = tl.constexpr(SMALLEST_SCALE)
_WITHOUT_SIGN: tl.constexpr = tl.constexpr(0x7FFFFFFF)


def cast_tiles(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Cast:
    """Return what `cast_fp8` returns, for a contiguous matrix."""
    rows, columns = x.shape
    values, transposed = x.new_empty(rows, columns, dtype=dtype), x.new_empty(columns, rows, dtype=dtype)
    figures = torch.zeros(2, dtype=torch.float32, device=x.device)
    find_largest(x, scale, figures[1:])
    _cast_tile[triton.cdiv(columns, _TILE_COLUMNS), triton.cdiv(rows, _TILE_ROWS)](
        x,
        scale,
        values.view(torch.uint8),
        transposed.view(torch.uint8),
        figures,
        figures.view(torch.int32),
        rows,
        columns,
        limit=torch.finfo(dtype).max,
        is_e4m3=dtype == E4M3,
        tile_rows=_TILE_ROWS,
        tile_columns=_TILE_COLUMNS,
        num_warps=_TILE_WARPS,
    )
    return values, transposed, figures


def find_largest(x: torch.Tensor, scale: torch.Tensor, into: torch.Tensor) -> None:
    """Write the largest absolute value to the first number of `into`, which is 0 before, if there is no scale yet."""
    _find_largest[SEARCH_PROGRAMS,](
        x,
        scale,
        into.view(torch.int32),
        x.numel(),
        triton.cdiv(x.numel(), SEARCH_PROGRAMS * SEARCH_VALUES),
        programs=SEARCH_PROGRAMS,
        block_values=SEARCH_VALUES,
        num_warps=SEARCH_WARPS,
    )


@triton.jit
def _find_largest(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    x, scale, into_bits, count, blocks, programs: tl.constexpr, block_values: tl.constexpr
):
    # In most steps there is a scale, and nothing is read.
    if tl.load(scale) == 0.0:
        offsets = tl.arange(0, block_values)
        largest = tl.zeros((block_values,), tl.int32)
        for block in range(blocks):
            at = (block * programs + tl.program_id(0)).to(tl.int64) * block_values + offsets
            value = tl.load(x + at, mask=at < count, other=0.0).to(tl.bfloat16).to(tl.float32)
            largest = tl.maximum(largest, get_magnitude_bits(value))
        tl.atomic_max(into_bits, tl.max(largest, 0), sem="relaxed")


@triton.jit
def _cast_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    x,
    scale,
    values,
    transposed,
    figures,
    figure_bits,
    rows,
    columns,
    limit: tl.constexpr,
    is_e4m3: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    first_row, first_column = tl.program_id(1) * tile_rows, tl.program_id(0) * tile_columns
    value = load_tile(x, first_row, first_column, rows, columns, tile_rows, tile_columns)
    factor = choose_factor(tl.load(scale), figures, limit, (tl.program_id(0) == 0) & (tl.program_id(1) == 0))
    store_tile(
        value, factor, values, transposed, figure_bits, first_row, first_column, rows, columns, limit, is_e4m3,
        tile_rows, tile_columns,
    )  # fmt: skip


@triton.jit
def load_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    x, first_row, first_column, rows, columns, tile_rows: tl.constexpr, tile_columns: tl.constexpr
):
    """Return a tile of a matrix in fp32, rounded to bf16; it is 0 outside of the matrix."""
    row, column = tl.arange(0, tile_rows), tl.arange(0, tile_columns)
    inside = (first_row + row < rows)[:, None] & (first_column + column < columns)[None, :]
    # Only the place of a tile needs 64 bits: places within it take half of the registers.
    place = first_row.to(tl.int64) * columns + first_column
    value = tl.load(x + place + (row[:, None] * columns + column[None, :]), mask=inside, other=0.0)
    # Weights may be read as they are stored, in fp32; they get the bits that a copy in bf16 would give them.
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def choose_factor(factor, figures, limit: tl.constexpr, is_first):  # type: ignore[no-untyped-def]
    """Return the scale of a matrix, which the first of its tiles writes to the figures; 0 means that there is none."""
    # Without a scale, the largest value of all tiles is here already, and does not change any more.
    factor = tl.where(factor == 0.0, tl.div_rn(tl.load(figures + 1), limit), factor)
    if is_first:
        tl.store(figures, factor)
    return factor


@triton.jit
def store_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    value,
    factor,
    values,
    transposed,
    figure_bits,
    first_row,
    first_column,
    rows,
    columns,
    limit: tl.constexpr,
    is_e4m3: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    """Write a tile in fp8, divided by the factor, to a matrix and its transpose, and update the largest value."""
    row, column = tl.arange(0, tile_rows), tl.arange(0, tile_columns)
    row_inside, column_inside = first_row + row < rows, first_column + column < columns
    inverse = tl.div_rn(1.0, tl.maximum(factor, _SMALLEST_SCALE))
    clamped = tl.minimum(tl.maximum(value * inverse, -limit), limit)
    rounded = clamped.to(tl.float8e4nv) if is_e4m3 else clamped.to(tl.float8e5)
    code = rounded.to(tl.uint8, bitcast=True)
    place = first_row.to(tl.int64) * columns + first_column
    inside = row_inside[:, None] & column_inside[None, :]
    tl.store(values + place + (row[:, None] * columns + column[None, :]), code, mask=inside)
    place = first_column.to(tl.int64) * rows + first_row
    inside = column_inside[:, None] & row_inside[None, :]
    tl.store(transposed + place + (column[:, None] * rows + row[None, :]), tl.trans(code), mask=inside)
    # A maximum does not depend on the order in which tiles are done. Values outside are 0.
    tl.atomic_max(figure_bits + 1, tl.max(tl.max(get_magnitude_bits(value), 1), 0), sem="relaxed")


@triton.jit
def get_magnitude_bits(value):  # type: ignore[no-untyped-def]  # a kernel has no types
    """Return the bits of fp32 values without their signs: integers in the order of the magnitudes, with NaN last."""
    return value.to(tl.int32, bitcast=True) & _WITHOUT_SIGN
