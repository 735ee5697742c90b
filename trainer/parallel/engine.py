"""What every way of spreading a model over ranks offers to the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import nn

from trainer.parallel.mesh import Mesh

Batch = dict[str, torch.Tensor]
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Engine(Protocol):
    mesh: Mesh
    modules: list[nn.Module]
    choices: list[str]  # what was decided for the user, and why: for the log

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters, sharded ones as DTensors, under the model's own names."""

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers that belong in a checkpoint, under the model's own names."""

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        """Leave gradients of the mean loss (times scale) in the parameters; return this rank's mean loss.

        The batch is run in pieces of `micro` samples. Nothing here waits for the device.
        """


def micro_batches(batch: Batch, micro: int) -> list[Batch]:
    """Views of the batch, `micro` samples each."""
    size = len(batch["inputs"])
    if size % micro:
        raise ValueError(f"a share of {size} samples does not split into micro-batches of {micro}")
    return [{key: value[at : at + micro] for key, value in batch.items()} for at in range(0, size, micro)]
