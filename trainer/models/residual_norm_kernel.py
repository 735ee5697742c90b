"""A Triton kernel for the gradients of RMS norm. Only GPUs can run it.

Sums of parts of the rows are written and added in a fixed order, so that results are reproducible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PROGRAMS, _WARPS, _STAGES = 264, 4, 4


def differentiate_rows(
    slope: torch.Tensor, norm_slope: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x, which is used as it is and normalised, and that of the weight in fp32."""
    columns = x.shape[-1]
    rows, for_x = x.numel() // columns, torch.empty_like(x)
    programs = min(rows, _PROGRAMS)
    sums = torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    _differentiate_rows[programs,](
        slope, norm_slope, x, inverse, weight, for_x, sums, rows, columns,
        block_columns=triton.next_power_of_2(columns), stages=_STAGES, num_warps=_WARPS,
    )  # fmt: skip
    return for_x, sums.sum(0)


@triton.jit
def _differentiate_rows(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    slopes,
    norm_slopes,
    x,
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
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        at = (row + tl.zeros((block_columns,), tl.int64)) * columns + column
        slope = tl.load(slopes + at, mask=inside, other=0.0).to(tl.float32)
        norm_slope = tl.load(norm_slopes + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(inverses + row)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * inverse
        weighted = norm_slope * weight
        result = (weighted - value * (tl.sum(weighted * value, 0) / columns)) * inverse + slope
        tl.store(for_x + at, result.to(for_x.dtype.element_ty), mask=inside)
        for_weight += norm_slope * value
    tl.store(sums + tl.program_id(0) * columns + column, for_weight, mask=inside)
