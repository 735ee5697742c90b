"""Triton kernels that turn logits into the gradient of their cross entropy. Only GPUs can run them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.models.fp8_cast_kernel import store_tile
from trainer.models.fp8_formats import E5M2, Cast
from trainer.models.functional import IGNORED_TARGET

_SEGMENTS, _SEGMENT_COLUMNS = 4, 2048
"""A program reads a row in blocks of so many segments, and a thread has the same columns of each segment."""
_WARPS, _STAGES = 8, 3
_PROGRAMS = 264
"""Programs of a kernel: two for each of a GPU's 132 processors."""
_LONG_ROW = 65_536
"""Columns from which on half as many programs with twice as wide segments are faster."""
_TILE_ROWS, _TILE_COLUMNS, _TILE_WARPS = 64, 64, 4
_LOWEST: tl.constexpr = tl.constexpr(-(2.0**127))
"""Value below every finite logit; as a power of 2, it can be multiplied without rounding and subtracted from itself."""
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


def differentiate_rows(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, factor: float) -> None:
    """Overwrite rows of logits with the gradients of their losses, times a factor, and write the losses.

    The factor is positive. Each row is read twice and written once.
    """
    rows, columns = logits.shape
    grid, blocks = _choose_grid(rows, columns)
    operands = (logits, targets, losses, logits.stride(0), rows, columns, factor)
    _differentiate_rows[grid](*operands, ignored=IGNORED_TARGET, **blocks)


def differentiate_rows_fp8(
    logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor
) -> Cast:
    """Return the gradients of the losses of rows as `cast_fp8` returns them in e5m2, and write the losses.

    The scale is not 0. Each row is read twice, and the gradients are written in fp8 only.
    """
    rows, columns = logits.shape
    log_totals = torch.empty(rows, dtype=torch.float32, device=logits.device)
    operands = (logits, targets, log_totals)
    grid, blocks = _choose_grid(rows, columns)
    _measure_rows[grid](*operands, losses, rows, columns, ignored=IGNORED_TARGET, **blocks)
    values, transposed = (logits.new_empty(shape, dtype=E5M2) for shape in ((rows, columns), (columns, rows)))
    figures = torch.stack((scale, torch.zeros_like(scale)))
    _differentiate_tile[triton.cdiv(columns, _TILE_COLUMNS), triton.cdiv(rows, _TILE_ROWS)](
        *operands,
        values.view(torch.uint8),
        transposed.view(torch.uint8),
        figures,
        figures.view(torch.int32),
        rows,
        columns,
        limit=torch.finfo(E5M2).max,
        ignored=IGNORED_TARGET,
        tile_rows=_TILE_ROWS,
        tile_columns=_TILE_COLUMNS,
        num_warps=_TILE_WARPS,
    )
    return values, transposed, figures


def _choose_grid(rows: int, columns: int) -> tuple[tuple[int], dict[str, int]]:
    """Return the number of programs, and the sizes of the blocks in which they read rows."""
    times = 2 if columns >= _LONG_ROW else 1
    width = min(times * _SEGMENT_COLUMNS, triton.next_power_of_2(columns))
    blocks = {"segments": _SEGMENTS, "segment_columns": width, "stages": _STAGES, "num_warps": times * _WARPS}
    return (min(rows, _PROGRAMS // times),), blocks


@triton.jit
def _differentiate_rows(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    logits,
    targets,
    losses,
    stride,
    rows,
    columns,
    factor,
    ignored: tl.constexpr,
    segments: tl.constexpr,
    segment_columns: tl.constexpr,
    stages: tl.constexpr,
):
    column = tl.arange(0, segments)[:, None] * segment_columns + tl.arange(0, segment_columns)[None, :]
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = logits + tl.cast(row, tl.int64) * stride
        target = tl.load(targets + row)
        counts = target != ignored
        is_column = (target >= 0) & (target < columns)
        # Read before the row is overwritten.
        chosen = tl.load(start + tl.where(is_column, target, 0)).to(tl.float32)
        log_total = _find_log_total(start, columns, segments, segment_columns, stages)
        # The power of 2 that is the gradient of a logit of 0. If the row does not count, no logit is read.
        power = tl.where(counts, tl.fma(log_total, -_LOG2_E, tl.log2(factor)), 0.0)
        readable = tl.where(counts, columns, 0)
        for first in tl.range(0, columns, segments * segment_columns, num_stages=stages):
            values = tl.load(start + first + column, mask=first + column < readable, other=_LOWEST).to(tl.float32)
            slopes = tl.exp2(tl.fma(values, _LOG2_E, power))
            tl.store(start + first + column, slopes.to(logits.dtype.element_ty), mask=first + column < columns)
        # After the threads have written the whole row, one of them corrects the target's value.
        tl.debug_barrier()
        slope = tl.exp2(tl.fma(chosen, _LOG2_E, power)) - factor
        tl.store(start + target, slope.to(logits.dtype.element_ty), mask=counts & is_column)
        tl.store(losses + row, tl.where(counts, log_total - chosen, 0.0))


@triton.jit
def _find_log_total(  # type: ignore[no-untyped-def]
    start, columns, segments: tl.constexpr, segment_columns: tl.constexpr, stages: tl.constexpr
):
    """Return the logarithm of the sum of a row's exponentials; threads exchange values only at its end."""
    column = tl.arange(0, segments)[:, None] * segment_columns + tl.arange(0, segment_columns)[None, :]
    highest = tl.full((segment_columns,), _LOWEST, tl.float32)
    total = tl.zeros((segment_columns,), tl.float32)
    for first in tl.range(0, columns, segments * segment_columns, num_stages=stages):
        values = tl.load(start + first + column, mask=first + column < columns, other=_LOWEST).to(tl.float32)
        higher = tl.maximum(highest, tl.max(values, 0))
        power = higher * -_LOG2_E
        total *= tl.exp2(tl.fma(highest, _LOG2_E, power))
        total += tl.sum(tl.exp2(tl.fma(values, _LOG2_E, power[None, :])), 0)
        highest = higher
    top = tl.max(highest, 0)
    return top + tl.log(tl.sum(total * tl.exp2((highest - top) * _LOG2_E), 0))


@triton.jit
def _measure_rows(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    logits,
    targets,
    log_totals,
    losses,
    rows,
    columns,
    ignored: tl.constexpr,
    segments: tl.constexpr,
    segment_columns: tl.constexpr,
    stages: tl.constexpr,
):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = logits + tl.cast(row, tl.int64) * columns
        target = tl.load(targets + row)
        is_column = (target >= 0) & (target < columns)
        chosen = tl.load(start + tl.where(is_column, target, 0)).to(tl.float32)
        log_total = _find_log_total(start, columns, segments, segment_columns, stages)
        tl.store(log_totals + row, log_total)
        tl.store(losses + row, tl.where(target != ignored, log_total - chosen, 0.0))


@triton.jit
def _differentiate_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    logits,
    targets,
    log_totals,
    values,
    transposed,
    figures,
    figure_bits,
    rows,
    columns,
    limit: tl.constexpr,
    ignored: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    first_row, first_column = tl.program_id(1) * tile_rows, tl.program_id(0) * tile_columns
    row, column = tl.arange(0, tile_rows), tl.arange(0, tile_columns)
    row_inside, column_inside = first_row + row < rows, first_column + column < columns
    inside = row_inside[:, None] & column_inside[None, :]
    place = first_row.to(tl.int64) * columns + first_column
    logit = tl.load(logits + place + (row[:, None] * columns + column[None, :]), mask=inside, other=0.0)
    log_total = tl.load(log_totals + first_row + row, mask=row_inside, other=0.0)
    target = tl.load(targets + first_row + row, mask=row_inside, other=ignored)
    is_target = (first_column + column)[None, :] == target[:, None]
    # As in `differentiate_rows`, bit for bit.
    power = log_total * -_LOG2_E
    slope = tl.exp2(tl.fma(logit.to(tl.float32), _LOG2_E, power[:, None])) - tl.where(is_target, 1.0, 0.0)
    slope = tl.where(inside & (target != ignored)[:, None], slope, 0.0)
    # Rounded as `differentiate_rows` stores it.
    slope = slope.to(logits.dtype.element_ty).to(tl.float32)
    store_tile(
        slope, tl.load(figures), values, transposed, figure_bits, first_row, first_column, rows, columns, limit, False,
        tile_rows, tile_columns,
    )  # fmt: skip
