"""The last layer of a language model, where the objective is computed if all logits must not exist at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Head(nn.Linear):
    """The layer from hidden states to logits, or to the value of an objective.

    An objective is called within the layer: there its weight is gathered, in the precision of the run and under the
    hooks of the engine. It must use `head.weight` or `head.compute_logits`, because `head(...)` would run the hooks a
    second time. Under tensor parallelism, `hidden` and `head.weight` are DTensors. With LoRA on the head, only
    `compute_logits` and `factor_change` know about the change of the weight.
    """

    uses_fp8 = False
    """Whether objectives in training compute its products in fp8 (`fp8.head`)."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__(dim, vocab_size, bias=False)

    def forward(
        self,
        hidden: torch.Tensor,
        objective: Objective | None = None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if objective is None or targets is None:
            return self.compute_logits(hidden)
        return objective(hidden, self, targets)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states."""
        return super().forward(hidden)

    def factor_change(self, states: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002
        """Return what is added to the logits of states (N, dim) as two factors, (N, rank) and (columns, rank).

        Under tensor parallelism, states and factors are this rank's parts. A plain head adds nothing.
        """
        return []


Objective = Callable[[torch.Tensor, Head, torch.Tensor], torch.Tensor]
"""A function of hidden states (B, T, dim), the head and targets (B, T)."""


def takes_objective(model: nn.Module) -> bool:
    """Return whether a model, called with `objective` and `targets`, returns the value of the objective."""
    return isinstance(getattr(model, "head", None), Head)
