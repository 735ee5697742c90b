"""The figures of an evaluation: sums that any number of ranks can add up, and the means that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from trainer.models.functional import IGNORED_TARGET, get_logits

SUMS = 3
"""Loss, targets and correct predictions."""


@dataclass(frozen=True)
class EvaluationResult:
    """The figures of one evaluation."""

    loss: float
    """Mean over all targets."""
    accuracy: float | None
    """Share of targets that are the most likely prediction; None with a loss function of the user."""
    perplexity: float | None
    """Exponential of the loss, for language models."""
    samples: int
    seconds: float
    source_losses: dict[str, float] = field(default_factory=dict)
    """Mean loss of each data set of a mixture; `loss` and `accuracy` are then means by the weights of the mixture."""

    def values(self) -> dict[str, float]:
        """Return the figures that were measured, by name."""
        values = {"loss": self.loss, "accuracy": self.accuracy, "perplexity": self.perplexity}
        values |= {f"loss/{name}": loss for name, loss in self.source_losses.items()}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.4f}"]
        parts += [f"perplexity {self.perplexity:.2f}"] if self.perplexity is not None else []
        parts += [f"accuracy {self.accuracy:.2%}"] if self.accuracy is not None else []
        parts += [f"loss of {name} {loss:.4f}" for name, loss in self.source_losses.items()]
        return f"{', '.join(parts)} ({self.samples:,} samples in {self.seconds:.1f} s)"


def sum_cross_entropy(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed loss in fp32, the number of targets that are not ignored, and of correct predictions."""
    flat = targets.flatten()
    logits = get_logits(outputs).flatten(0, -2)
    loss = F.cross_entropy(logits.float(), flat, ignore_index=IGNORED_TARGET, reduction="sum")
    # No prediction equals the number of an ignored target.
    correct = logits.argmax(-1) == flat
    return torch.stack([loss.double(), (flat != IGNORED_TARGET).sum().double(), correct.sum().double()])


def sum_own_loss(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function like `sum_cross_entropy` for a mean loss of the user, which counts samples as targets."""

    def sum_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        samples = torch.full((), len(targets), dtype=torch.float64, device=targets.device)
        return torch.stack([loss(outputs, targets).double() * samples, samples, torch.zeros_like(samples)])

    return sum_loss


def compute_perplexity(loss: float) -> float:
    """Return the exponential of a loss, which is infinite if it is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
