"""The part of each sequence that a rank holds under context parallelism.

A sequence is cut into two chunks for each rank, and rank i of N holds the chunks i and 2N - 1 - i. Later tokens have
more tokens before them to attend to, so an early and a late chunk together give every rank the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

functional = torch.ops._c10d_functional


@dataclass(frozen=True)
class SequencePart:
    """The place of this rank among those that share each sequence."""

    rank: int
    ranks: int
    group: Any = None
    """The process group of these ranks."""
    tensor: int = 1
    """Tensor parallel ranks that divide the hidden states of the part between layers."""

    @property
    def chunks(self) -> tuple[int, int]:
        """The chunks of this rank, by their place in the sequence."""
        return self.rank, 2 * self.ranks - 1 - self.rank

    def take(self, whole: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Return this rank's part of a tensor; `dim` is that of the tokens."""
        chunks = whole.chunk(2 * self.ranks, dim)
        return torch.cat([chunks[chunk] for chunk in self.chunks], dim)

    def list_positions(self, length: int, device: torch.device) -> torch.Tensor:
        """Return the positions in the sequence of the `length` tokens of this part."""
        return self.take(torch.arange(length * self.ranks, device=device), dim=0)

    def gather(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the whole tensor; the gradient of a part is the sum over all ranks that use it."""
        parts: torch.Tensor = _Gather.apply(part, self.group, self.ranks)
        early, late = zip(*(chunks.chunk(2, dim) for chunks in parts.chunk(self.ranks)), strict=True)
        return torch.cat([*early, *reversed(late)], dim)


class _Gather(torch.autograd.Function):
    """All-gather along the first dimension; the backward pass is a reduce-scatter.

    The compiler gets calls that return new tensors: from calls that fill given ones, torch 2.11 makes wrong gradients.
    Other runs use the latter, because a profile has their sizes.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any, ranks: int) -> torch.Tensor:
        ctx.group, ctx.ranks = group, ranks
        if torch.compiler.is_compiling():
            return functional.wait_tensor(functional.all_gather_into_tensor(part.contiguous(), ranks, group.group_name))
        gathered = part.new_empty(ranks * part.shape[0], *part.shape[1:])
        dist.all_gather_into_tensor(gathered, part.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        if torch.compiler.is_compiling():
            own = functional.reduce_scatter_tensor(gradient.contiguous(), "sum", ctx.ranks, ctx.group.group_name)
            return functional.wait_tensor(own), None, None
        own = gradient.new_empty(gradient.shape[0] // ctx.ranks, *gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None, None
