"""Head and cross entropy with fp8 products: the loss and the gradients, as `fused_loss` computes them in bf16.

A gradient of a logit is a probability, or one minus 1, so its scale is a constant and no pass has to search for the
largest value. Hidden states and weight have one scale each, derived from their values. It is one operation for the
compiler, and on a CPU it computes the same products in fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trainer.config.check_fp8 import FP8_MULTIPLE
from trainer.models.fp8 import add_scale, cast_delayed, multiply_scaled
from trainer.models.fp8_cast import cast_plainly
from trainer.models.fp8_formats import E4M3, E5M2, Cast
from trainer.models.functional import IGNORED_TARGET
from trainer.models.fused_loss import differentiate_rows, make_gradients

_SLOPE_SCALE = 2.0**-15
"""Maps slopes, which are at most 1, into e5m2 (at most 57,344), whose smallest number then stands for 5e-10."""


@torch.library.custom_op("muster::differentiate_head_fp8", mutates_args=())
def differentiate_head_fp8(  # noqa: PLR0913, PLR0917 - operations of torch take tensors and numbers, not objects
    states: torch.Tensor,
    columns: torch.Tensor,
    targets: torch.Tensor,
    chunk_rows: int,
    needs_states: bool,
    needs_columns: bool,
    sums_in_fp32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses (N,) and the gradients of states (N, dim) and columns (vocabulary, dim), empty if not needed.

    States and columns are bf16. Logits exist for `chunk_rows` rows at a time, rounded up to what fp8 products need.
    """
    losses = torch.zeros(len(targets), dtype=torch.float32, device=states.device)
    # The product of the first chunk is the gradient of the columns, so no memory is needed for it beforehand.
    for_states, for_columns = make_gradients(states, columns, needs_states, False, sums_in_fp32)
    unscaled, slope_scale = (torch.full((), scale, device=states.device) for scale in (0.0, _SLOPE_SCALE))
    columns8, columns_transposed, _ = cast_delayed(columns, unscaled, E4M3)
    size = chunk_rows + -chunk_rows % FP8_MULTIPLE
    for first in range(0, len(targets), size):
        rows = slice(first, first + size)
        own, own_targets = _pad(states[rows], targets[rows])
        count = len(targets[rows])
        own8, own_transposed, _ = cast_delayed(own, unscaled, E4M3)
        logits = multiply_scaled(own8, columns8, is_gradient=False)
        own_losses = losses.new_empty(len(own))
        if not (needs_states or needs_columns):
            differentiate_rows(logits, own_targets, own_losses, 1.0)
            losses[rows] = own_losses[:count]
            continue
        slopes8, slopes_transposed, _ = add_scale(*differentiate_rows_fp8(logits, own_targets, own_losses, slope_scale))
        # The logits are the largest part of the memory, and the products need the fp8 slopes only.
        del logits
        losses[rows] = own_losses[:count]
        if needs_states:
            for_states[rows] = multiply_scaled(slopes8, columns_transposed, is_gradient=True)[:count]
        del slopes8
        if needs_columns:
            product = multiply_scaled(slopes_transposed, own_transposed, is_gradient=True, dtype=for_columns.dtype)
            for_columns = product if first == 0 else for_columns.add_(product)
    return losses, for_states, for_columns


@differentiate_head_fp8.register_fake
def _describe(  # noqa: PLR0913, PLR0917 - the parameters of the operation
    states: torch.Tensor,
    columns: torch.Tensor,
    targets: torch.Tensor,
    chunk_rows: int,  # noqa: ARG001 - the results do not depend on it
    needs_states: bool,
    needs_columns: bool,
    sums_in_fp32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tensors like the results, without computing them."""
    losses = targets.new_empty(targets.shape, dtype=torch.float32)
    return losses, *make_gradients(states, columns, needs_states, needs_columns, sums_in_fp32)


def differentiate_rows_fp8(
    logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor
) -> Cast:
    """Return the gradients of the losses of rows as `cast_fp8` returns them in e5m2, and write the losses.

    The logits may be overwritten.
    """
    if logits.is_cuda:
        # Triton is imported where it is used: it takes long, and the package exists on Linux only.
        from trainer.models import softmax_kernel  # noqa: PLC0415

        return softmax_kernel.differentiate_rows_fp8(logits, targets, losses, scale)
    differentiate_rows(logits, targets, losses, 1.0)
    return cast_plainly(logits, scale, E5M2)


def _pad(states: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add rows of zeros with ignored targets, until fp8 products fit."""
    missing = -len(targets) % FP8_MULTIPLE
    if not missing:
        return states, targets
    return F.pad(states, (0, 0, 0, missing)), F.pad(targets, (0, missing), value=IGNORED_TARGET)
