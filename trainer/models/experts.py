"""A mixture of experts: feed-forward layers of which each token uses a few, chosen by a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import MoeConfig
from trainer.models.fake_tensors import is_without_memory
from trainer.models.routing import Router
from trainer.parallel.local_part import take_local_part

ExpertFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of rows sorted by expert and the number of rows of each expert, which returns as many rows."""
_ALIGNED_VALUES = 8
"""The grouped product needs rows of a multiple of 16 bytes: of 8 values in bf16."""
_GROUPED_CAPABILITY = (9, 0)


class MixtureOfExperts(nn.Module):
    """Feed-forward layers of which each token uses `top_k`; their outputs are added with the router's weights."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = Router(config)
        self.experts = Experts(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        routing = self.router(tokens)
        rows = _Copy.apply(tokens, routing.order, routing.inverse, self.top_k)
        outputs = permute(self.experts(rows, routing.counts), routing.inverse, routing.order)
        outputs = outputs.unflatten(0, (-1, self.top_k))
        return torch.bmm(routing.weights.type_as(outputs).unsqueeze(1), outputs).view(x.shape)


class Experts(nn.Module):
    """SwiGLU feed-forward layers, with the weights of all experts in one tensor of each kind."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.gate = ExpertLinear(config.experts, config.dim, config.ffn)
        self.up = ExpertLinear(config.experts, config.dim, config.ffn)
        self.down = ExpertLinear(config.experts, config.ffn, config.dim)
        self.exchange: Exchange | None = None
        """Set by expert parallelism."""

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        device = rows.device.type
        # Autocast does not know the grouped product.
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            rows = rows.to(torch.get_autocast_dtype(device))
        return self._compute(rows, counts) if self.exchange is None else self.exchange.run(self._compute, rows, counts)

    def _compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        groups = _make_groups(rows, counts, (*self.gate.widths, *self.up.widths, *self.down.widths))
        hidden = F.silu(self.gate(rows, groups)) * self.up(rows, groups)
        return self.down(hidden, groups)


class Exchange(Protocol):
    """The way of rows to the ranks of their experts, and of the outputs back."""

    def run(self, compute: ExpertFunction, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute rows that are sorted by expert where the experts are, and return the outputs in their order."""


class ExpertLinear(nn.Module):
    """One linear layer without bias for each expert; under expert parallelism, for each expert of this rank."""

    wide_dims: ClassVar[dict[str, int]] = {"weight": 1}
    """A dimension of each weight, other than that of the experts, along which ranks can divide it."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.widths: tuple[int, ...] = (inputs, outputs)
        """Widths of the rows that it computes with; under tensor parallelism, on this rank."""

    def forward(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return multiply_groups(rows, self.weight, groups)


def multiply_groups(rows: torch.Tensor, weights: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Multiply the rows of each expert by the transposed weight of that expert."""
    local = take_local_part(weights).to(rows.dtype)
    if groups.sizes is None:
        return torch._grouped_mm(rows, local.transpose(-2, -1), offs=groups.ends)
    parts = zip(rows.split(groups.sizes), local.unbind(), strict=True)
    # An expert without rows multiplies none, so that its weight has a gradient of zeros.
    return torch.cat([F.linear(part, weight) for part, weight in parts])


def permute(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Return the rows in another order; `inverse` is the order that brings them back."""
    permuted: torch.Tensor = _Permute.apply(rows, order, inverse)
    return permuted


@dataclass(frozen=True)
class Groups:
    """Where the rows of each expert end, on the device, and how many they are, if the host has to know that."""

    ends: torch.Tensor
    sizes: list[int] | None


def _make_groups(rows: torch.Tensor, counts: torch.Tensor, widths: tuple[int, ...]) -> Groups:
    ends = counts.cumsum(0).int()
    if is_without_memory(rows):
        # The sizes of a model are measured on such tensors: equal loads need the least memory.
        each, more = divmod(len(rows), len(counts))
        return Groups(ends, [each + (expert < more) for expert in range(len(counts))])
    is_aligned = all(width % _ALIGNED_VALUES == 0 for width in widths)
    is_grouped = rows.dtype == torch.bfloat16 and is_aligned and len(rows) > 0 and _has_grouped_product(rows.device)
    return Groups(ends, None if is_grouped else counts.tolist())


@cache
def _has_grouped_product(device: torch.device) -> bool:
    """Return whether the products of all experts can be one kernel, which needs no wait for the loads."""
    is_present = device.type == "cuda" and hasattr(torch, "_grouped_mm")
    return is_present and torch.cuda.get_device_capability(device) >= _GROUPED_CAPABILITY


class _Copy(torch.autograd.Function):
    """Copy each token once for each of its experts, sorted by expert.

    The backward pass gathers the copies and adds them, in a fixed order; that of torch's indexing would sort them.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, copies: int
    ) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return tokens[order // copies]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse].unflatten(0, (-1, ctx.copies)).sum(1), None, None, None


class _Permute(torch.autograd.Function):
    """Reorder rows; the backward pass reorders them back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None
