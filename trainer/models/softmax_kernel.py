"""A Triton kernel that turns logits into the gradient of their cross entropy, in place. Only GPUs can run it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.models.functional import IGNORED_TARGET

_BLOCK_COLUMNS = 4096
_WARPS = 8
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
    highest = _LOWEST
    total = 0.0
    for first in range(0, columns, block_columns):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=_LOWEST).to(tl.float32)
        higher = tl.maximum(highest, tl.max(values, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(values - higher), 0)
        highest = higher
    log_total = highest + tl.log(total)
    for first in range(0, columns, block_columns):
        inside = first + offsets < columns
        values = tl.load(start + first + offsets, mask=inside, other=_LOWEST).to(tl.float32)
        slopes = tl.exp(values - log_total) - tl.where(first + offsets == target, 1.0, 0.0)
        slopes = tl.where(counts, slopes * factor, 0.0)
        tl.store(start + first + offsets, slopes.to(logits.dtype.element_ty), mask=inside)
    tl.store(losses + row, tl.where(counts, log_total - chosen, 0.0))
