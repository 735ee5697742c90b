"""The router of a mixture of experts: it chooses the experts of each token and keeps their loads equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import MoeConfig
from trainer.parallel.local_part import take_local_part


@dataclass(frozen=True)
class Routing:
    """The experts that each token uses, in the order of tokens and of experts."""

    weights: torch.Tensor
    """(tokens, top_k): the weights of a token's experts in its output; their sum is 1."""
    order: torch.Tensor
    """(tokens x top_k): the uses of experts, numbered by token, sorted by expert."""
    inverse: torch.Tensor
    """(tokens x top_k): the place of each use in `order`."""
    counts: torch.Tensor
    """(experts): uses of each expert."""


class Router(nn.Module):
    """A linear layer that scores every expert for a token; the token uses those with the highest scores.

    No use is dropped: an expert takes all tokens that choose it. `load` counts them during a step, over all of its
    micro-batches. trainer/expert_balance.py reads it after each step and sets `loss_scale` before each step.
    """

    load: torch.Tensor
    loss_scale: torch.Tensor
    balance_bias: torch.Tensor

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.experts, self.top_k, self.balance_rate = config.experts, config.top_k, config.balance_rate
        # The mean over the layers, so that the weight of the loss does not depend on their number.
        self.loss_weight = config.balance_loss / config.layers if config.balance == "loss" else 0.0
        self.has_bias = config.balance == "bias"
        self.weight = nn.Parameter(torch.empty(config.experts, config.dim))
        self.register_buffer("load", torch.zeros(config.experts, dtype=torch.int64), persistent=False)
        self.register_buffer("loss_scale", torch.ones(()), persistent=False)
        # A part of the model: it decides which experts a token uses, in evaluation too.
        if self.has_bias:
            self.register_buffer("balance_bias", torch.zeros(config.experts))

    def forward(self, tokens: torch.Tensor) -> Routing:
        probabilities = F.linear(tokens, take_local_part(self.weight)).float().softmax(-1)
        chosen = self._choose(probabilities.detach())
        weights = probabilities.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        experts, order = chosen.flatten().sort(stable=True)
        every_expert = torch.arange(self.experts, device=tokens.device)
        # Unlike torch.bincount, this does not wait for the device.
        ends = torch.searchsorted(experts, every_expert, right=True)
        counts = ends.diff(prepend=ends.new_zeros(1))
        if self.training and torch.is_grad_enabled():
            self.load += counts
            if self.loss_weight:
                loss = self.loss_weight * compute_balance_loss(probabilities, counts)
                weights = _WithLoss.apply(weights, loss, self.loss_scale)
        return Routing(weights, order, order.argsort(), counts)

    def reset_balance(self) -> None:
        """Start with equal loads and no bias."""
        self.load.zero_()
        self.loss_scale.fill_(1.0)
        if self.has_bias:
            self.balance_bias.zero_()

    def _choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Return the experts of each token; the bias changes the choice, but not the weights (arXiv:2408.15664)."""
        scores = probabilities + self.balance_bias if self.has_bias else probabilities
        return scores.topk(self.top_k, dim=-1).indices


def compute_balance_loss(probabilities: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the loss that is smallest, top_k, if all experts are used equally (arXiv:2101.03961, equation 4).

    The tokens of one micro-batch are balanced. Uses are counts, so the gradient goes through the probabilities.
    """
    tokens, experts = probabilities.shape
    return experts * (counts / tokens * probabilities.mean(0)).sum()


class _WithLoss(torch.autograd.Function):
    """Values passed on unchanged, with a second loss whose gradient is added in the backward pass.

    The loss thus needs no way to the end of the model, which may be on another rank. Its scale is that of the main
    loss: 1 / micro-batches, times the scale of fp16 gradients.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, loss: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        ctx.save_for_backward(scale)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return gradients[0], scale.clone(), None
