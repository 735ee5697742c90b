"""Cross entropy averaged over the targets that count in a whole step, whichever rank and micro-batch they are in."""

from __future__ import annotations

import torch

from trainer.models.functional import IGNORED_TARGET, compute_loss
from trainer.parallel.mesh import Mesh


class StepMean:
    """A loss function for batches that leave targets out.

    Engines average micro-batches and ranks alike, so each micro-batch is weighted by its part of the step's targets.
    Where nothing is left out all weights are 1, and no bit changes.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._per_target = torch.ones((), dtype=torch.float64, device=mesh.device)

    def begin(self, targets: torch.Tensor, micro: int) -> None:
        """Count the targets of the step, on the device; every rank must call it, with its share."""
        total = self._mesh.sum_over((targets != IGNORED_TARGET).sum(), "replicate", "shard")
        micro_batches = self._mesh.layout.dp_size * len(targets) // micro
        self._per_target.copy_(micro_batches / total.clamp(min=1).double())

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weight = (targets != IGNORED_TARGET).sum() * self._per_target
        return compute_loss(outputs, targets) * weight.float()
