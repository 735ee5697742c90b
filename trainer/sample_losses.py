"""The training loss of each data set of a mixture, from the losses of the samples of a step."""

from __future__ import annotations

import torch

from trainer.config.layout import DATA_AXES
from trainer.models.functional import IGNORED_TARGET
from trainer.parallel.mesh import Mesh


class SampleLosses:
    """Loss and targets of each sample of this rank in a step, recorded by the objective; nothing waits for the device.

    Every engine runs the micro-batches of a step in the order of the samples. The place of the next one is a tensor, so
    that a compiled graph is the same for all of them.
    """

    def __init__(self, sources: int, device: torch.device) -> None:
        self._numbers = torch.arange(sources, device=device).unsqueeze(1)
        self._sums = torch.zeros(0, 2, dtype=torch.float64, device=device)
        self._next = torch.zeros((), dtype=torch.int64, device=device)

    def begin(self, samples: int) -> None:
        """Begin a step of that many samples."""
        if len(self._sums) != samples:
            self._sums = self._sums.new_zeros(samples, 2)
        # Pipeline stages without the head record nothing.
        self._sums.zero_()
        self._next.zero_()

    @torch.no_grad()
    def record(self, losses: torch.Tensor, targets: torch.Tensor) -> None:
        """Record the next micro-batch: the loss of each target (B, T), which is 0 if the target is ignored."""
        counts = (targets != IGNORED_TARGET).sum(-1)
        sums = torch.stack([losses.sum(-1, dtype=torch.float64), counts.double()], dim=-1)
        rows = self._next + torch.arange(len(sums), device=sums.device)
        self._sums.index_copy_(0, rows, sums)
        self._next.add_(len(sums))

    def sum_by_source(self, sources: torch.Tensor) -> torch.Tensor:
        """Return loss and targets of each data set on this rank, (data sets, 2), given that of each sample."""
        is_own = (sources == self._numbers).unsqueeze(-1)
        # Not a product: the NaN of a sample would spread to all data sets.
        return torch.where(is_own, self._sums, 0.0).sum(1)


def average_by_source(sums: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Return the mean loss of each data set over its targets on all ranks; 0 without a target. Every rank must call it.

    `sums` are those of `SampleLosses.sum_by_source`.
    """
    loss, targets = mesh.sum_over(sums.clone(), *DATA_AXES, "pipeline").unbind(1)
    return loss / targets.clamp(min=1)
