"""Triton kernels that compute SwiGLU and its gradients in fp8. Only GPUs can run them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.models import fp8_cast_kernel
from trainer.models.fp8_cast_kernel import choose_factor, get_magnitude_bits, load_tile, store_tile
from trainer.models.fp8_formats import E4M3, E5M2, Cast

_TILE_ROWS, _TILE_COLUMNS, _TILE_WARPS = 64, 64, 4


def activate_tiles(gate: torch.Tensor, up: torch.Tensor, scale: torch.Tensor) -> Cast:
    """Return what `activate_fp8` returns, for contiguous matrices: 6 bytes are moved for each value."""
    rows, columns = gate.shape
    values, transposed = gate.new_empty(rows, columns, dtype=E4M3), gate.new_empty(columns, rows, dtype=E4M3)
    figures = torch.zeros(2, dtype=torch.float32, device=gate.device)
    programs, search = _plan_search(gate)
    _find_largest_output[programs,](gate, up, scale, figures.view(torch.int32), gate.numel(), **search)
    _activate_tile[triton.cdiv(columns, _TILE_COLUMNS), triton.cdiv(rows, _TILE_ROWS)](
        gate,
        up,
        scale,
        values.view(torch.uint8),
        transposed.view(torch.uint8),
        figures,
        figures.view(torch.int32),
        rows,
        columns,
        limit=torch.finfo(E4M3).max,
        tile_rows=_TILE_ROWS,
        tile_columns=_TILE_COLUMNS,
        num_warps=_TILE_WARPS,
    )
    return values, transposed, figures


def differentiate_tiles(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, gate_scale: torch.Tensor, up_scale: torch.Tensor
) -> Cast:
    """Return what `differentiate_activation_fp8` returns, for contiguous matrices.

    10 bytes are moved for each value: the programs of gate and up are neighbours, so the second one that reads a tile
    gets it from the cache.
    """
    rows, columns = gradient.shape
    values, transposed = (gradient.new_empty(2, *shape, dtype=E5M2) for shape in ((rows, columns), (columns, rows)))
    figures = torch.zeros(2, 2, dtype=torch.float32, device=gradient.device)
    operands = (gradient, gate, up, gate_scale, up_scale)
    programs, search = _plan_search(gradient)
    _find_largest_gradients[programs,](*operands, figures.view(torch.int32), gradient.numel(), **search)
    _differentiate_tile[2 * triton.cdiv(columns, _TILE_COLUMNS), triton.cdiv(rows, _TILE_ROWS)](
        *operands,
        values.view(torch.uint8),
        transposed.view(torch.uint8),
        figures,
        figures.view(torch.int32),
        rows,
        columns,
        limit=torch.finfo(E5M2).max,
        tile_rows=_TILE_ROWS,
        tile_columns=_TILE_COLUMNS,
        num_warps=_TILE_WARPS,
    )
    return values, transposed, figures


def _plan_search(x: torch.Tensor) -> tuple[int, dict[str, int]]:
    """Return the number of programs that search the values of a matrix, and their other arguments."""
    programs, block_values = fp8_cast_kernel.SEARCH_PROGRAMS, fp8_cast_kernel.SEARCH_VALUES
    blocks = triton.cdiv(x.numel(), programs * block_values)
    arguments = {"blocks": blocks, "programs": programs, "block_values": block_values}
    return programs, {**arguments, "num_warps": fp8_cast_kernel.SEARCH_WARPS}


@triton.jit
def _find_largest_output(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    gate, up, scale, figure_bits, count, blocks, programs: tl.constexpr, block_values: tl.constexpr
):
    # In most steps there is a scale, and nothing is read.
    if tl.load(scale) == 0.0:
        largest = tl.zeros((block_values,), tl.int32)
        for block in range(blocks):
            at = (block * programs + tl.program_id(0)).to(tl.int64) * block_values + tl.arange(0, block_values)
            value = _activate(_load(gate, at, count), _load(up, at, count))
            largest = tl.maximum(largest, get_magnitude_bits(value))
        tl.atomic_max(figure_bits + 1, tl.max(largest, 0), sem="relaxed")


@triton.jit
def _find_largest_gradients(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    gradient,
    gate,
    up,
    gate_scale,
    up_scale,
    figure_bits,
    count,
    blocks,
    programs: tl.constexpr,
    block_values: tl.constexpr,
):
    for place in tl.static_range(2):
        if tl.load(gate_scale if place == 0 else up_scale) == 0.0:
            largest = tl.zeros((block_values,), tl.int32)
            for block in range(blocks):
                at = (block * programs + tl.program_id(0)).to(tl.int64) * block_values + tl.arange(0, block_values)
                operands = (_load(gradient, at, count), _load(gate, at, count), _load(up, at, count))
                value = _differentiate(operands[0], operands[1], operands[2], place == 0)
                largest = tl.maximum(largest, get_magnitude_bits(value))
            tl.atomic_max(figure_bits + (2 * place + 1), tl.max(largest, 0), sem="relaxed")


@triton.jit
def _activate_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    gate,
    up,
    scale,
    values,
    transposed,
    figures,
    figure_bits,
    rows,
    columns,
    limit: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    first_row, first_column = tl.program_id(1) * tile_rows, tl.program_id(0) * tile_columns
    value = _activate(
        load_tile(gate, first_row, first_column, rows, columns, tile_rows, tile_columns),
        load_tile(up, first_row, first_column, rows, columns, tile_rows, tile_columns),
    )
    factor = choose_factor(tl.load(scale), figures, limit, (tl.program_id(0) == 0) & (tl.program_id(1) == 0))
    store_tile(
        value, factor, values, transposed, figure_bits, first_row, first_column, rows, columns, limit, True,
        tile_rows, tile_columns,
    )  # fmt: skip


@triton.jit
def _differentiate_tile(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # a kernel has no types
    gradient,
    gate,
    up,
    gate_scale,
    up_scale,
    values,
    transposed,
    figures,
    figure_bits,
    rows,
    columns,
    limit: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    place, tile = tl.program_id(0) % 2, tl.program_id(0) // 2
    first_row, first_column = tl.program_id(1) * tile_rows, tile * tile_columns
    value = _differentiate(
        load_tile(gradient, first_row, first_column, rows, columns, tile_rows, tile_columns),
        load_tile(gate, first_row, first_column, rows, columns, tile_rows, tile_columns),
        load_tile(up, first_row, first_column, rows, columns, tile_rows, tile_columns),
        place == 0,
    )
    scale = tl.where(place == 0, tl.load(gate_scale), tl.load(up_scale))
    is_first = (tile == 0) & (tl.program_id(1) == 0)
    factor = choose_factor(scale, figures + 2 * place, limit, is_first)
    start = place.to(tl.int64) * rows * columns
    store_tile(
        value, factor, values + start, transposed + start, figure_bits + 2 * place, first_row, first_column, rows,
        columns, limit, False, tile_rows, tile_columns,
    )  # fmt: skip


@triton.jit
def _load(x, at, count):  # type: ignore[no-untyped-def]  # a kernel has no types
    return tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)


@triton.jit
def _activate(gate, up):  # type: ignore[no-untyped-def]  # a kernel has no types
    """Return silu(gate) * up in fp32, rounded to bf16, as a cast after the activation would read it."""
    return (gate * tl.sigmoid(gate) * up).to(tl.bfloat16).to(tl.float32)


@triton.jit
def _differentiate(gradient, gate, up, is_gate):  # type: ignore[no-untyped-def]  # a kernel has no types
    """Return the gradient of gate or up in fp32, rounded to bf16."""
    share = tl.sigmoid(gate)
    slope = tl.where(is_gate, up * (share * (1 + gate * (1 - share))), gate * share)
    return (gradient * slope).to(tl.bfloat16).to(tl.float32)
