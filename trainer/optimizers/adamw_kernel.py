"""A Triton kernel for the update of AdamW, which moves fewer bytes than torch's. Only GPUs can run it.

torch's fused kernel writes gradients back after it has divided them, although nobody reads them again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Update

_BLOCK_VALUES = 2048
_WARPS = 8


def update_tensor(  # noqa: PLR0913
    value: torch.Tensor,
    gradient: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    *,
    corrections: torch.Tensor,
    decay: float,
    update: Update,
    config: OptimizerConfig,
) -> None:
    """Update a contiguous tensor and its two moments in one pass; `corrections` are those of their bias."""
    _update_values[triton.cdiv(value.numel(), _BLOCK_VALUES),](
        value,
        gradient,
        *moments,
        corrections,
        corrections if update.divide is None else update.divide,
        corrections if update.skip is None else update.skip,
        value.numel(),
        update.rate,
        update.rate * decay,
        config.beta1,
        config.beta2,
        config.eps,
        divides=update.divide is not None,
        can_skip=update.skip is not None,
        block_values=_BLOCK_VALUES,
        num_warps=_WARPS,
    )


@triton.jit
def _update_values(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    values,
    gradients,
    firsts,
    seconds,
    corrections,
    divide,
    skip,
    count,
    rate,
    shrink,
    beta1,
    beta2,
    eps,
    divides: tl.constexpr,
    can_skip: tl.constexpr,
    block_values: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * block_values + tl.arange(0, block_values)
    if can_skip:
        # Values outside are neither read nor written.
        count = tl.where(tl.load(skip) == 0.0, count, 0)
    inside = at < count
    gradient = tl.load(gradients + at, mask=inside)
    if divides:
        gradient = gradient / tl.load(divide)
    value = tl.load(values + at, mask=inside)
    first = tl.load(firsts + at, mask=inside)
    second = tl.load(seconds + at, mask=inside)
    first = first + (gradient - first) * (1 - beta1)
    second = second * beta2 + gradient * gradient * (1 - beta2)
    root = tl.sqrt(second) / tl.load(corrections + 1) + eps
    value = value - shrink * value
    value = value - rate / tl.load(corrections) * first / root
    tl.store(values + at, value, mask=inside)
    tl.store(firsts + at, first, mask=inside)
    tl.store(seconds + at, second, mask=inside)
