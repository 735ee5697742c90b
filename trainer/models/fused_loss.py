"""Head and cross entropy on a GPU: loss and gradients together, with logits in one buffer that becomes their gradient.

It is one operation for the compiler, so that eager and compiled models run the same kernels.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from trainer.models.functional import IGNORED_TARGET

_HAS_TRITON = find_spec("triton") is not None
_SCHEMA = (
    "(Tensor states, Tensor columns, Tensor targets, int chunk_rows, float slope_factor, float states_factor, "
    "bool needs_states, bool needs_columns, bool sums_in_fp32) -> (Tensor, Tensor, Tensor)"
)


def is_available(device: torch.device) -> bool:
    """Return whether the operation runs on this device."""
    return device.type == "cuda" and _HAS_TRITON


@torch.library.custom_op("muster::differentiate_head", mutates_args=(), schema=_SCHEMA)
def differentiate_head(  # noqa: PLR0913, PLR0917
    states: torch.Tensor,
    columns: torch.Tensor,
    targets: torch.Tensor,
    chunk_rows: int,
    slope_factor: float,
    states_factor: float,
    needs_states: bool,
    needs_columns: bool,
    sums_in_fp32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses (N,) and the gradients of states (N, dim) and columns (vocabulary, dim), empty if not needed.

    Logits exist for `chunk_rows` rows at a time. Gradients are those of the sum, times `slope_factor` and, for the
    columns, `states_factor`.
    """
    losses = torch.empty(len(targets), dtype=torch.float32, device=states.device)
    for_states, for_columns = make_gradients(states, columns, needs_states, needs_columns, sums_in_fp32)
    logits = states.new_empty(min(chunk_rows, len(targets)), len(columns))
    for first in range(0, len(targets), chunk_rows):
        rows = slice(first, first + chunk_rows)
        own = states[rows]
        slopes = torch.mm(own, columns.t(), out=logits[: len(own)])
        differentiate_rows(slopes, targets[rows], losses[rows], slope_factor)
        if needs_states:
            torch.mm(slopes, columns, out=for_states[rows])
        if needs_columns:
            scaled = own if states_factor == 1 else own * states_factor
            _add_product(for_columns, slopes.t(), scaled, is_first=first == 0)
    return losses, for_states, for_columns


@differentiate_head.register_fake
def _describe(  # noqa: PLR0913, PLR0917
    states: torch.Tensor,
    columns: torch.Tensor,
    targets: torch.Tensor,
    chunk_rows: int,  # noqa: ARG001
    slope_factor: float,  # noqa: ARG001
    states_factor: float,  # noqa: ARG001
    needs_states: bool,
    needs_columns: bool,
    sums_in_fp32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tensors like the results, without computing them."""
    losses = targets.new_empty(targets.shape, dtype=torch.float32)
    return losses, *make_gradients(states, columns, needs_states, needs_columns, sums_in_fp32)


def make_gradients(
    states: torch.Tensor, columns: torch.Tensor, needs_states: bool, needs_columns: bool, sums_in_fp32: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory for the gradients of states and columns, empty if they are not needed."""
    dtype = torch.float32 if sums_in_fp32 else columns.dtype
    return (
        states.new_empty(states.shape if needs_states else (0,)),
        columns.new_empty(columns.shape if needs_columns else (0,), dtype=dtype),
    )


def differentiate_rows(logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, factor: float) -> None:
    """Overwrite rows of logits with the gradients of their losses, times a factor, and write the losses."""
    if logits.is_cuda:
        # Triton is imported where it is used: it takes long, and the package exists on Linux only.
        from trainer.models import softmax_kernel  # noqa: PLC0415

        softmax_kernel.differentiate_rows(logits, targets, losses, factor)
        return
    counts, logs = targets != IGNORED_TARGET, logits.float().log_softmax(-1)
    column = torch.where(counts, targets, 0).unsqueeze(-1)
    losses.copy_(torch.where(counts, -logs.gather(-1, column).squeeze(-1), 0.0))
    slopes = logs.exp_()
    slopes.scatter_add_(-1, column, torch.full_like(column, -1, dtype=slopes.dtype))
    logits.copy_(torch.where(counts.unsqueeze(-1), slopes.mul_(factor), 0.0))


def _add_product(total: torch.Tensor, slopes: torch.Tensor, states: torch.Tensor, *, is_first: bool) -> None:
    """Add the product to the total, or write the first one; sums have the type of the total."""
    beta = 0 if is_first else 1
    if total.dtype == states.dtype:
        torch.addmm(total, slopes, states, beta=beta, out=total)
    elif total.is_cuda:
        torch.addmm(total, slopes, states, out_dtype=total.dtype, beta=beta, out=total)
    else:
        torch.addmm(total, slopes.to(total.dtype), states.to(total.dtype), beta=beta, out=total)
