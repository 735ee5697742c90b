"""Triton kernels that turn logits into the gradient of their cross entropy. Only GPUs can run them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.models.fp8_cast_kernel import store_tile
from trainer.models.fp8_formats import E5M2, Cast
from trainer.models.functional import IGNORED_TARGET

_BLOCK_COLUMNS = 4096
_WARPS = 8
_TILE_ROWS, _TILE_COLUMNS, _TILE_WARPS = 64, 64, 4
_LOWEST: tl.constexpr = tl.constexpr(-3.0e38)
"""Value below every finite logit; unlike an infinity, it can be subtracted from itself."""


def differentiate_rows(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, factor: float) -> None:
    """Overwrite rows of logits with the gradients of their losses, times a factor, and write the losses.

    Each row is read twice and written once, which is all that the memory has to do.
    """
    rows, columns = logits.shape
    _differentiate_row[rows,](
        logits,
        targets,
        losses,
        logits.stride(0),
        columns,
        factor,
        ignored=IGNORED_TARGET,
        block_columns=min(_BLOCK_COLUMNS, triton.next_power_of_2(columns)),
        num_warps=_WARPS,
    )


def differentiate_rows_fp8(
    logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor
) -> Cast:
    """Return the gradients of the losses of rows as `cast_fp8` returns them in e5m2, and write the losses.

    The scale is not 0. Each row is read twice, and the gradients are written in fp8 only.
    """
    rows, columns = logits.shape
    log_totals = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block_columns = min(_BLOCK_COLUMNS, triton.next_power_of_2(columns))
    operands = (logits, targets, log_totals)
    _measure_row[rows,](
        *operands, losses, columns, ignored=IGNORED_TARGET, block_columns=block_columns, num_warps=_WARPS
    )
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


@triton.jit
def _differentiate_row(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    logits,
    targets,
    losses,
    stride,
    columns,
    factor,
    ignored: tl.constexpr,
    block_columns: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    counts = target != ignored
    is_column = (target >= 0) & (target < columns)
    # Read before the row is overwritten.
    chosen = tl.load(start + tl.where(is_column, target, 0)).to(tl.float32)
    offsets = tl.arange(0, block_columns)
    log_total = _find_log_total(start, columns, block_columns)
    for first in range(0, columns, block_columns):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=_LOWEST).to(tl.float32)
        slopes = tl.exp(values - log_total) - tl.where(first + offsets == target, 1.0, 0.0)
        slopes = tl.where(counts, slopes * factor, 0.0)
        tl.store(start + first + offsets, slopes.to(logits.dtype.element_ty), mask=inside)
    tl.store(losses + row, tl.where(counts, log_total - chosen, 0.0))


@triton.jit
def _find_log_total(start, columns, block_columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the logarithm of the sum of a row's exponentials."""
    offsets = tl.arange(0, block_columns)
    highest = _LOWEST
    total = 0.0
    for first in range(0, columns, block_columns):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=_LOWEST).to(tl.float32)
        higher = tl.maximum(highest, tl.max(values, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(values - higher), 0)
        highest = higher
    return highest + tl.log(total)


@triton.jit
def _measure_row(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    logits, targets, log_totals, losses, columns, ignored: tl.constexpr, block_columns: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    target = tl.load(targets + row)
    is_column = (target >= 0) & (target < columns)
    chosen = tl.load(start + tl.where(is_column, target, 0)).to(tl.float32)
    log_total = _find_log_total(start, columns, block_columns)
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
    slope = tl.exp(logit.to(tl.float32) - log_total[:, None]) - tl.where(is_target, 1.0, 0.0)
    slope = tl.where(inside & (target != ignored)[:, None], slope, 0.0)
    # Rounded as `differentiate_rows` stores it.
    slope = slope.to(logits.dtype.element_ty).to(tl.float32)
    store_tile(
        slope, tl.load(figures), values, transposed, figure_bits, first_row, first_column, rows, columns, limit, False,
        tile_rows, tile_columns,
    )  # fmt: skip
