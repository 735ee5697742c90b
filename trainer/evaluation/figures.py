"""The figures of an evaluation: sums that any number of ranks can add up, and the means that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from trainer.models.cross_entropy import measure_predictions
from trainer.models.functional import IGNORED_TARGET, get_logits
from trainer.models.head import Head

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


@dataclass(frozen=True)
class CrossEntropySums:
    """The sums of an evaluation: loss in fp32, targets that are not ignored, and correct predictions."""

    chunk_tokens: int = 0
    """Tokens whose logits exist at a time, for models that compute an objective themselves; 0 means all."""

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        flat = targets.flatten()
        logits = get_logits(outputs).flatten(0, -2)
        loss = F.cross_entropy(logits.float(), flat, ignore_index=IGNORED_TARGET, reduction="sum")
        # No prediction equals the number of an ignored target.
        return _stack_sums(loss, targets, (logits.argmax(-1) == flat).sum())

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        """Return the same without computing all logits at once; called inside the model's head."""
        loss, correct = measure_predictions(hidden, head, targets, self.chunk_tokens)
        return _stack_sums(loss, targets, correct)


class OwnLossSums:
    """The sums of an evaluation with a mean loss of the user, which counts samples as targets."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        if hasattr(loss, "from_hidden"):
            self.from_hidden = self._sum_from_hidden

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return self._sum(self._loss(outputs, targets), targets)

    def _sum_from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        return self._sum(self._loss.from_hidden(hidden, head, targets), targets)

    def _sum(self, mean: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        samples = torch.full((), len(targets), dtype=torch.float64, device=targets.device)
        return torch.stack([mean.double() * samples, samples, torch.zeros_like(samples)])


def compute_perplexity(loss: float) -> float:
    """Return the exponential of a loss, which is infinite if it is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _stack_sums(loss: torch.Tensor, targets: torch.Tensor, correct: torch.Tensor) -> torch.Tensor:
    return torch.stack([loss.double(), (targets != IGNORED_TARGET).sum().double(), correct.double()])
