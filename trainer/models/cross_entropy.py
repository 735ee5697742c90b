"""Cross entropy from hidden states and the weight of the head, some tokens at a time and over a split vocabulary.

Logits and their gradient exist for `chunk_tokens` tokens only. Gradients of hidden states and weight are computed along
with the loss, so that no product is computed twice. Under tensor parallelism each rank has the logits of its part of
the vocabulary, and the ranks exchange a few numbers per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.models.functional import IGNORED_TARGET
from trainer.models.head import Head

_FP16_FACTOR = 1 / 16
"""Factor of fp16 gradients: their sum over the tokens of a chunk must not overflow either."""


def sum_cross_entropy(hidden: torch.Tensor, head: Head, targets: torch.Tensor, chunk_tokens: int = 0) -> torch.Tensor:
    """Return the cross entropy in fp32, summed over the targets that are not ignored.

    `chunk_tokens` is the number of tokens whose logits exist at a time; 0 means all of them.
    """
    own, weight, part = _find_part(hidden, head)
    loss: torch.Tensor = _SumCrossEntropy.apply(
        own.flatten(0, -2), weight, targets.flatten(), part, chunk_tokens, _find_product_type(own)
    )
    return loss


@torch.no_grad()
def measure_predictions(
    hidden: torch.Tensor, head: Head, targets: torch.Tensor, chunk_tokens: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same sum, and how many targets are the most likely prediction; an ignored target never is."""
    own, weight, part = _find_part(hidden, head)
    dtype = _find_product_type(own)
    states, columns, flat = own.flatten(0, -2).to(dtype), weight.to(dtype), targets.flatten()
    loss, correct = torch.zeros((), device=own.device), torch.zeros((), dtype=torch.int64, device=own.device)
    for rows in _list_chunks(flat, chunk_tokens):
        logits = states[rows] @ columns.t()
        correct += (part.predict(logits) == flat[rows]).sum()
        column, is_here = part.locate(flat[rows], len(columns))
        loss -= part.pick(part.normalize(logits), column, is_here, flat[rows])
    return loss, correct


@torch.no_grad()
def predict_tokens(hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
    """Return for each row the most likely token at its first place with a target; 0 if no place has one.

    Only the logits of these places are computed, whatever the length of the rows.
    """
    own, weight, part = _find_part(hidden, head)
    dtype, has_target = _find_product_type(own), targets != IGNORED_TARGET
    places = has_target.int().argmax(-1)
    states = own[torch.arange(len(own), device=own.device), places]
    tokens = part.predict(states.to(dtype) @ weight.to(dtype).t())
    return torch.where(has_target.any(-1), tokens, 0)


@dataclass(frozen=True)
class VocabularyPart:
    """The part of the vocabulary whose logits this rank computes: all of it, or that of a tensor-parallel rank."""

    first: int = 0
    group: Any = None
    """Process group of the ranks with the other parts, in their order; None if there are none."""

    def normalize(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the probabilities, in fp32."""
        if self.group is None:
            return logits.log_softmax(-1, dtype=torch.float32)
        logits = logits.float()
        return logits - self._gather(logits.logsumexp(-1)).logsumexp(0).unsqueeze(-1)

    def locate(self, targets: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the column of each target among the `size` columns of this part, and whether it is one of them."""
        columns = targets - self.first
        is_here = (columns >= 0) & (columns < size)
        return torch.where(is_here, columns, 0).unsqueeze(-1), is_here

    def pick(
        self, logs: torch.Tensor, column: torch.Tensor, is_here: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the targets' logarithms, on all ranks; ignored targets do not count."""
        picked = torch.where(is_here, logs.gather(-1, column).squeeze(-1), 0.0)
        if self.group is not None:
            picked = self._gather(picked).sum(0)
        return torch.where(targets != IGNORED_TARGET, picked, 0.0).sum()

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
    """The summed loss of hidden states (N, dim), with a weight (columns, dim) and targets (N,).

    The saved gradients are those of the sum, which do not underflow in fp16. The factor of the mean and the loss scale
    follow in the backward pass.
    """

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        part: VocabularyPart,
        chunk_tokens: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        states, columns = hidden.to(dtype), weight.to(dtype)
        total = torch.zeros((), device=hidden.device)
        for_hidden: list[torch.Tensor] = []
        for_weight: torch.Tensor | None = None
        chunks = list(_list_chunks(targets, chunk_tokens))
        for rows in chunks:
            column, is_here = part.locate(targets[rows], len(columns))
            logs = part.normalize(states[rows] @ columns.t())
            total = total - part.pick(logs, column, is_here, targets[rows])
            if not (needs_hidden or needs_weight):
                continue
            slope = logs.exp_()
            slope.scatter_(-1, column, slope.gather(-1, column) - is_here.unsqueeze(-1).float())
            slope.masked_fill_((targets[rows] == IGNORED_TARGET).unsqueeze(-1), 0.0)
            products = (slope.mul_(_FP16_FACTOR) if dtype == torch.float16 else slope).to(dtype)
            if needs_hidden:
                for_hidden.append(products @ columns)
            if needs_weight:
                for_weight = _accumulate(for_weight, products, states[rows], is_only=len(chunks) == 1)
        ctx.divisor = _FP16_FACTOR if dtype == torch.float16 else 1.0
        ctx.save_for_backward(
            torch.cat(for_hidden).to(hidden.dtype) if needs_hidden else None,
            for_weight.to(weight.dtype) if for_weight is not None else None,
        )
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        factor = gradients[0] / ctx.divisor
        scaled = [None if saved is None else _scale(saved, factor) for saved in ctx.saved_tensors]
        return *scaled, None, None, None, None


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
    # In place, because the gradient of a head is large; the compiler does this itself.
    if torch.compiler.is_compiling():
        return gradient * factor.to(gradient.dtype)
    return gradient.mul_(factor)


def _list_chunks(targets: torch.Tensor, chunk_tokens: int) -> Iterator[slice]:
    size = chunk_tokens or len(targets)
    return (slice(start, start + size) for start in range(0, len(targets), size))


def _find_part(hidden: Any, head: Any) -> tuple[torch.Tensor, torch.Tensor, VocabularyPart]:
    """Return hidden states, the weight and the part of the vocabulary as this rank has them."""
    if not hasattr(head.weight, "device_mesh"):
        return hidden, head.weight, VocabularyPart()
    # Start-up: torch.distributed.tensor is imported only by runs that split layers.
    from torch.distributed.tensor import Partial  # noqa: PLC0415

    mesh = head.weight.device_mesh
    rows = -(-head.weight.shape[0] // mesh.size())
    # Each rank computes the gradient of the hidden states from its part of the vocabulary; they have to be summed.
    own = hidden.to_local(grad_placements=(Partial(),))
    return own, head.weight.to_local(), VocabularyPart(rows * mesh.get_local_rank(), mesh.get_group())


def _find_product_type(values: torch.Tensor) -> torch.dtype:
    """Return the type of matrix products: that of autocast, or that of the values."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
