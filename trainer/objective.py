"""The training objective: cross entropy, as the mean of a micro-batch or over the targets of a whole step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import DATA_AXES
from trainer.config.schema import Config
from trainer.models.cross_entropy import sum_cross_entropy
from trainer.models.functional import IGNORED_TARGET, compute_loss, get_logits
from trainer.models.head import Head
from trainer.parallel.engine import Engine, LossFunction
from trainer.parallel.mesh import Mesh
from trainer.sample_losses import SampleLosses


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy averaged over the targets that are not ignored: from a model's outputs, or from hidden states."""

    chunk_tokens: int = 0
    """Tokens whose logits exist at a time, for models that compute the objective themselves; 0 means all."""
    keeps_gradients: bool = True
    """Whether the gradient of the head is computed along with the loss and kept until the backward pass."""
    samples: SampleLosses | None = None
    """Where the losses of samples are recorded, for models that compute the objective themselves."""

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return compute_loss(get_logits(outputs), targets)

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        """Return the same without computing all logits at once; called inside the model's head."""
        record = None if self.samples is None else partial(self.samples.record, targets=targets)
        total = sum_cross_entropy(
            hidden, head, targets, self.chunk_tokens, keeps_gradients=self.keeps_gradients, record=record
        )
        return total / (targets != IGNORED_TARGET).sum().clamp(min=1)


class StepMeanLoss:
    """Cross entropy averaged over all targets of a step that are not ignored, across ranks and micro-batches.

    Engines average micro-batches and ranks with equal weights, so the loss of each micro-batch is multiplied by its
    share of the step's targets. If no target is ignored, every factor is 1 and no bit changes.
    """

    def __init__(self, mesh: Mesh, mean: CrossEntropy | None = None) -> None:
        self._mesh = mesh
        self._mean = mean or CrossEntropy()
        self._weight_per_target = torch.ones((), dtype=torch.float64, device=mesh.device)

    def begin(self, targets: torch.Tensor, micro: int) -> None:
        """Count the targets of the step on the device; every rank must call it with its share."""
        total = self._mesh.sum_over((targets != IGNORED_TARGET).sum(), *DATA_AXES)
        micro_batches = self._mesh.weights.dp_size * len(targets) // micro
        self._weight_per_target.copy_(micro_batches / total.clamp(min=1).double())

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return self._mean(outputs, targets) * self._weigh(targets)

    def from_hidden(self, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        """Return the same without computing all logits at once; called inside the model's head."""
        return self._mean.from_hidden(hidden, head, targets) * self._weigh(targets)

    def _weigh(self, targets: torch.Tensor) -> torch.Tensor:
        return ((targets != IGNORED_TARGET).sum() * self._weight_per_target).float()


def choose_objective(loss: LossFunction, config: Config, engine: Engine) -> LossFunction:
    """Return the loss of a run: in chunks if it is the default one; raise ConfigError if the model cannot call it."""
    if loss is compute_loss:
        # Under gpipe all micro-batches are at the loss before the first backward pass: each would keep a gradient.
        keeps_gradients = engine.mesh.layout.pipeline == 1 or config.parallel.schedule != "gpipe"
        sources = len(config.data.mixture)
        # Only language models read mixtures, and all of them compute the objective themselves.
        samples = SampleLosses(sources, engine.mesh.device) if sources > 1 else None
        return CrossEntropy(config.loss.chunk_tokens, keeps_gradients, samples)
    if not callable(loss) and not engine.takes_objective:
        names = f"{type(loss).__name__} has only from_hidden, but {engine.units.model} does not take an objective"
        fix = "give it a `head` of trainer.models.head.Head, or the loss a method __call__(outputs, targets)"
        raise ConfigError([ConfigProblem("loss", names, fix)])
    return loss
