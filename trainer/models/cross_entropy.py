"""Cross entropy from hidden states and the weight of the head, some tokens at a time and over a split vocabulary.

Logits and their gradient exist for `chunk_tokens` tokens only. Gradients of hidden states and weight are computed along
with the loss, so that no product is computed twice; on request they are computed in the backward pass instead. Under
tensor parallelism each rank has the logits of its part of the vocabulary, and the ranks exchange a few numbers per
token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.models import fp8_head, fused_loss
from trainer.models.fake_tensors import is_without_memory
from trainer.models.functional import IGNORED_TARGET
from trainer.models.head import Head

_FP16_SLOPE_FACTOR = 64.0
"""Factor of the gradient of logits in fp16, whose smallest number is 6e-8."""
_SCALED_ROWS = 8192
"""Rows of a gradient that are copied to fp32 at a time."""


def sum_cross_entropy(  # noqa: PLR0913
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    chunk_tokens: int = 0,
    *,
    keeps_gradients: bool = True,
    record: Callable[[torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """Return the cross entropy in fp32, summed over the targets that are not ignored.

    `chunk_tokens` is the number of tokens whose logits exist at a time; 0 means all of them. Without `keeps_gradients`
    the backward pass computes the logits again, and nothing of the size of the weight is kept until then. `record` is
    called with the losses of the targets, one by one; that of an ignored target is 0.

    A target outside of the vocabulary is an error on the CPU. On a GPU, which must not be waited for, loss and
    gradients are NaN.
    """
    factors, part = _find_factors(hidden, head)
    # A model of the user's own may have a head without the attribute.
    uses_fp8 = head.training and getattr(head, "uses_fp8", False)
    settings = (part, chunk_tokens, _find_product_type(factors[0]), uses_fp8, keeps_gradients)
    total, losses = _SumCrossEntropy.apply(targets.flatten(), *settings, *factors)
    if record is not None:
        record(losses.view_as(targets))
    return total


@torch.no_grad()
def measure_predictions(
    hidden: torch.Tensor, head: Head, targets: torch.Tensor, chunk_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same sum, and how many targets are the most likely prediction; an ignored target never is."""
    factors, part = _find_factors(hidden, head)
    flat, factors = targets.flatten(), _cast(factors, _find_product_type(factors[0]))
    loss, correct = part.check(flat), torch.zeros((), dtype=torch.int64, device=hidden.device)
    for rows in _list_chunks(flat, chunk_tokens):
        logits = _multiply(factors, rows)
        correct += (part.predict(logits) == flat[rows]).sum()
        column, is_here = part.locate(flat[rows], len(factors[1]))
        loss -= part.pick(part.normalize(logits), column, is_here, flat[rows]).sum()
    return loss, correct


@torch.no_grad()
def predict_tokens(hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
    """Return for each row the most likely token at its first place with a target; 0 if no place has one.

    Only the logits of these places are computed, whatever the length of the rows.
    """
    has_target = targets != IGNORED_TARGET
    places = has_target.int().argmax(-1)
    factors, part = _find_factors(hidden, head)
    rows = torch.arange(len(targets), device=targets.device) * targets.shape[-1] + places
    tokens = part.predict(_multiply(_cast(factors, _find_product_type(factors[0])), rows))
    return torch.where(has_target.any(-1), tokens, 0)


@dataclass(frozen=True)
class VocabularyPart:
    """The part of the vocabulary whose logits this rank computes: all of it, or that of a tensor-parallel rank."""

    vocabulary: int
    """Size of the whole vocabulary."""
    first: int = 0
    group: Any = None
    """Process group of the ranks with the other parts, in their order; None if there are none."""

    def check(self, targets: torch.Tensor) -> torch.Tensor:
        """Return 0, or NaN if a target is neither ignored nor a token; on the CPU, raise ConfigError instead."""
        is_invalid = (targets != IGNORED_TARGET) & ((targets < 0) | (targets >= self.vocabulary))
        if _can_read(targets) and is_invalid.any():
            message = f"{int(targets[is_invalid][0])} is not a token of the model (0 to {self.vocabulary - 1})"
            fix = f"use {IGNORED_TARGET} for tokens to ignore, such as padding"
            raise ConfigError([ConfigProblem("targets", message, fix)])
        return torch.where(is_invalid.any(), math.nan, 0.0)

    def normalize(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the probabilities, in fp32."""
        # Logits in bf16 are freed here: log_softmax would hold them, a copy in fp32 and its result at once.
        logits = logits.float()
        if self.group is None:
            return logits.log_softmax(-1)
        return logits - self._gather(logits.logsumexp(-1)).logsumexp(0).unsqueeze(-1)

    def locate(self, targets: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the column of each target among the `size` columns of this part, and whether it is one of them."""
        columns = targets - self.first
        is_here = (columns >= 0) & (columns < size)
        return torch.where(is_here, columns, 0).unsqueeze(-1), is_here

    def pick(
        self, logs: torch.Tensor, column: torch.Tensor, is_here: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return the logarithm of each target, on all ranks; 0 for an ignored one."""
        picked = torch.where(is_here, logs.gather(-1, column).squeeze(-1), 0.0)
        if self.group is not None:
            picked = self._gather(picked).sum(0)
        return torch.where(targets != IGNORED_TARGET, picked, 0.0)

    def predict(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each row."""
        best, columns = logits.max(-1)
        if self.group is None:
            return columns
        winner = self._gather(best.float()).argmax(0, keepdim=True)
        return self._gather(columns + self.first).gather(0, winner).squeeze(0)

    def _gather(self, value: torch.Tensor) -> torch.Tensor:
        """Return the values of all parts, stacked; every rank of the group must call it."""
        ranks = dist.get_world_size(self.group)
        gathered = value.new_empty(ranks * len(value))
        dist.all_gather_into_tensor(gathered, value.contiguous(), group=self.group)
        return gathered.view(ranks, -1)


class _SumCrossEntropy(torch.autograd.Function):
    """The summed loss of targets (N,), and the loss of each of them, which has no gradient.

    The logits are the product of hidden states (N, dim) and a weight (columns, dim), or a sum of such products: the
    factors are given in pairs. The gradients are those of the sum; the factor of the mean and the loss scale follow in
    the backward pass.
    """

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917
        ctx: Any,
        targets: torch.Tensor,
        part: VocabularyPart,
        chunk_tokens: int,
        dtype: torch.dtype,
        uses_fp8: bool,
        keeps_gradients: bool,
        *factors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        needs = ctx.needs_input_grad[-len(factors) :] if keeps_gradients else (False,) * len(factors)
        settings = (part, chunk_tokens, dtype, uses_fp8)
        flaw = part.check(targets)
        total, losses, gradients = _compute(targets, *settings, factors=factors, needs=needs)
        ctx.settings, ctx.keeps_gradients = settings, keeps_gradients
        ctx.types = tuple(factor.dtype for factor in factors)
        ctx.scales = _choose_scales(dtype, _count_rows(targets, chunk_tokens))
        if keeps_gradients:
            ctx.save_for_backward(flaw, *gradients)
        else:
            ctx.save_for_backward(flaw, targets, *factors)
        ctx.mark_non_differentiable(losses)
        return total + flaw, losses

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        flaw, *saved = ctx.saved_tensors
        if not ctx.keeps_gradients:
            targets, *factors = saved
            needs = ctx.needs_input_grad[-len(factors) :]
            *_, saved = _compute(targets, *ctx.settings, factors=factors, needs=needs)
        of_slope, of_states = ctx.scales
        scaled = [
            None if value is None else _scale(value, gradients[0] / scale + flaw).to(dtype)
            for value, scale, dtype in zip(
                saved, len(saved) // 2 * (of_slope, of_slope * of_states), ctx.types, strict=True
            )
        ]
        return None, None, None, None, None, None, *scaled


def _compute(  # noqa: PLR0913
    targets: torch.Tensor,
    part: VocabularyPart,
    chunk_tokens: int,
    dtype: torch.dtype,
    uses_fp8: bool,
    *,
    factors: Sequence[torch.Tensor],
    needs: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
    """Return the loss, that of each target and, as `needs` says, the gradients of the factors, times those for fp16."""
    # LoRA on the head has two products to add up, which the kernels do not.
    is_plain = part.group is None and len(_pair(factors)) == 1
    is_fused = any(needs) and fused_loss.is_available(targets.device)
    if is_plain and (uses_fp8 or is_fused):
        return _compute_fused(targets, chunk_tokens, dtype, uses_fp8, factors=factors, needs=needs)
    values = _cast(factors, dtype)
    of_slope, of_states = _choose_scales(dtype, _count_rows(targets, chunk_tokens))
    total = torch.zeros((), device=targets.device)
    losses: list[torch.Tensor] = []
    for_states: list[list[torch.Tensor]] = [[] for _ in values[::2]]
    for_weights: list[torch.Tensor | None] = [None for _ in values[1::2]]
    chunks = list(_list_chunks(targets, chunk_tokens))
    for rows in chunks:
        column, is_here = part.locate(targets[rows], len(values[1]))
        logs = part.normalize(_multiply(values, rows))
        picked = part.pick(logs, column, is_here, targets[rows])
        losses.append(-picked)
        total = total - picked.sum()
        if not any(needs):
            del logs
            continue
        slope = logs.exp_()
        slope.scatter_(-1, column, slope.gather(-1, column) - is_here.unsqueeze(-1).float())
        slope.masked_fill_((targets[rows] == IGNORED_TARGET).unsqueeze(-1), 0.0)
        products = (slope if of_slope == 1 else slope.mul_(of_slope)).to(dtype)
        # A chunk is the largest part of the memory: it is freed before the next one is computed.
        del logs, slope
        for pair, (states, columns) in enumerate(_pair(values)):
            if needs[2 * pair]:
                for_states[pair].append(products @ columns)
            if needs[2 * pair + 1]:
                own = states[rows] if of_states == 1 else states[rows] * of_states
                for_weights[pair] = _accumulate(for_weights[pair], products, own, is_only=len(chunks) == 1)
        del products
    gradients = [
        gradient
        for parts, of_weight in zip(for_states, for_weights, strict=True)
        for gradient in (torch.cat(parts) if parts else None, of_weight)
    ]
    types = _choose_gradient_types(factors, dtype)
    cast = [None if value is None else value.to(kind) for value, kind in zip(gradients, types, strict=True)]
    return total, torch.cat(losses), cast


def _compute_fused(  # noqa: PLR0913 - the values that `_compute` has at hand
    targets: torch.Tensor,
    chunk_tokens: int,
    dtype: torch.dtype,
    uses_fp8: bool,
    *,
    factors: Sequence[torch.Tensor],
    needs: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
    """Return the same as `_compute`, by kernels that write the gradient of logits over them."""
    rows = _count_rows(targets, chunk_tokens)
    types = _choose_gradient_types(factors, dtype)
    sums_in_fp32 = types[1] == torch.float32 or rows < len(targets)
    values = _cast(factors, dtype)
    if uses_fp8:
        losses, *gradients = fp8_head.differentiate_head_fp8(*values, targets, rows, *needs, sums_in_fp32)
    else:
        scales = _choose_scales(dtype, rows)
        losses, *gradients = fused_loss.differentiate_head(*values, targets, rows, *scales, *needs, sums_in_fp32)
    cast = [
        value.to(kind) if is_needed else None for value, kind, is_needed in zip(gradients, types, needs, strict=True)
    ]
    return losses.sum(), losses, cast


def _choose_gradient_types(factors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.dtype]:
    """Return the types of the gradients: the scaled ones of fp16, and their sum over chunks, need the range of fp32."""
    return [torch.float32 if dtype == torch.float16 else factor.dtype for factor in factors]


def _multiply(factors: Sequence[torch.Tensor], rows: slice | torch.Tensor) -> torch.Tensor:
    """Return the logits of some rows: the product of hidden states and weight, or the sum of several products."""
    (states, columns), *others = _pair(factors)
    logits = states[rows] @ columns.t()
    for more, narrow in others:
        logits = logits.addmm_(more[rows], narrow.t())
    return logits


def _pair(factors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(factors[::2], factors[1::2], strict=True))


def _cast(factors: Sequence[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [factor.to(dtype) for factor in factors]


def _choose_scales(dtype: torch.dtype, rows: int) -> tuple[float, float]:
    """Return the powers of two by which slopes and hidden states are multiplied before fp16 products of `rows` tokens.

    Slopes are probabilities: they are raised, so that those of unlikely tokens do not become zero. Hidden states are
    lowered for the sum over tokens, which stays finite for states of up to 64 even if all tokens have the same target.
    """
    if dtype != torch.float16:
        return 1.0, 1.0
    return _FP16_SLOPE_FACTOR, 1.0 / 2 ** max(0, (rows - 1).bit_length() - 4)


def _accumulate(
    total: torch.Tensor | None, products: torch.Tensor, states: torch.Tensor, *, is_only: bool
) -> torch.Tensor:
    """Add the gradient of the weight for one chunk, in fp32 if there are several."""
    if is_only:
        return products.t() @ states
    if total is None:
        return (products.t() @ states).float()
    if total.dtype == states.dtype:
        return total.addmm_(products.t(), states)
    return total.add_(products.t() @ states)


def _scale(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return the product, computed in fp32: a factor in bf16 would scale the gradients of the whole model wrongly."""
    if torch.compiler.is_compiling():
        return (gradient.float() * factor).to(gradient.dtype)
    # In place, because the gradient of a head is large; the compiler does this itself.
    if gradient.dtype == torch.float32:
        return gradient.mul_(factor)
    for rows in gradient.split(_SCALED_ROWS):
        rows.copy_(rows.float().mul_(factor))
    return gradient


def _list_chunks(targets: torch.Tensor, chunk_tokens: int) -> Iterator[slice]:
    size = _count_rows(targets, chunk_tokens)
    return (slice(start, start + size) for start in range(0, len(targets), size))


def _count_rows(targets: torch.Tensor, chunk_tokens: int) -> int:
    """Return the number of tokens of the largest chunk."""
    return min(chunk_tokens or len(targets), len(targets))


def _find_factors(hidden: Any, head: Any) -> tuple[list[torch.Tensor], VocabularyPart]:
    """Return the factors of the logits, in pairs, and the part of the vocabulary as this rank has them."""
    own, weight, part = _find_part(hidden, head)
    states = own.flatten(0, -2)
    return [states, weight, *head.factor_change(states)], part


def _find_part(hidden: Any, head: Any) -> tuple[torch.Tensor, torch.Tensor, VocabularyPart]:
    """Return hidden states, the weight and the part of the vocabulary as this rank has them."""
    if not hasattr(head.weight, "device_mesh"):
        return hidden, head.weight, VocabularyPart(head.weight.shape[0])
    # Start-up: torch.distributed.tensor is imported only by runs that split layers.
    from torch.distributed.tensor import Partial  # noqa: PLC0415

    mesh = head.weight.device_mesh
    vocabulary = head.weight.shape[0]
    rows = -(-vocabulary // mesh.size())
    # Each rank computes the gradient of the hidden states from its part of the vocabulary; they have to be summed.
    own = hidden.to_local(grad_placements=(Partial(),))
    return own, head.weight.to_local(), VocabularyPart(vocabulary, rows * mesh.get_local_rank(), mesh.get_group())


def _can_read(targets: torch.Tensor) -> bool:
    """Return whether values can be read here without waiting for a device or breaking a graph."""
    return targets.device.type == "cpu" and not torch.compiler.is_compiling() and not is_without_memory(targets)


def _find_product_type(values: torch.Tensor) -> torch.dtype:
    """Return the type of matrix products: that of autocast, or that of the values."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
