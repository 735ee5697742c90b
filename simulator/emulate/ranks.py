"""Ranks that take turns in one process: the trainer's mesh and its data-parallel engine, run rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from simulator.emulate.group import Group
from trainer.config.layout import Layout
from trainer.parallel.engine import Batch, BetweenMicroBatches, Engine, LossFunction
from trainer.parallel.mesh import Mesh

if TYPE_CHECKING:
    from trainer.compression.compression import Compression


class VirtualMesh(Mesh):
    """The trainer's mesh; `rank` and `dp_rank` are those of the rank whose turn it is."""

    def __init__(self, layout: Layout, group: Group, device: torch.device) -> None:
        self.virtual = group
        super().__init__(layout, 0, device, uses_fully_shard=False)

    def turn_to(self, rank: int) -> None:
        self.rank, self.dp_rank = rank, self.layout.dp_rank(rank)
        self.virtual.begin(rank)

    def group(self, axis: str) -> Any:
        return self.virtual if getattr(self.layout, axis) > 1 else None

    def _connect(self) -> None:
        """Do nothing: there are no other processes to connect to."""


class VirtualRanks:
    """The trainer's engine for all ranks, seen from rank 0; `share_of(rank)` gives the batch of another rank.

    There is one copy of the weights, because all replicas' weights are equal. Statistics of the forward pass, such as
    a batch norm's, differ by rank; a checkpoint keeps rank 0's, which therefore runs last.
    """

    def __init__(self, inner: Engine, mesh: VirtualMesh, share_of: Callable[[int], Batch]) -> None:
        self.mesh: Mesh = mesh
        self._turns = mesh
        self.share_of = share_of
        self.modules: list[nn.Module] = inner.modules
        self.units = inner.units
        self.takes_objective = inner.takes_objective
        self.choices: list[str] = inner.choices
        self.before_rank: Callable[[], None] = _do_nothing
        self.losses: list[torch.Tensor] = []
        """Losses of the last step, by rank."""
        self.compression: Compression | None = None
        self._inner = inner

    @property
    def before_micro_batch(self) -> BetweenMicroBatches:
        """The function that the inner engine calls between micro-batches."""
        return self._inner.before_micro_batch

    @before_micro_batch.setter
    def before_micro_batch(self, function: BetweenMicroBatches) -> None:
        self._inner.before_micro_batch = function

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._inner.named_parameters()

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        return self._inner.differentiated_parameters()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._inner.named_buffers()

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._inner.private_tensors()

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        ranks = self.mesh.layout.dp_size
        before = [buffer.clone() for _, buffer in self.named_buffers()]
        self.losses = [torch.zeros(())] * ranks
        for rank in reversed(range(ranks)):
            self._reset(before)
            self._turns.turn_to(rank)
            self.before_rank()
            share = self.share_of(rank) if rank else batch
            self.losses[rank] = self._inner.forward_backward(share, loss_fn, micro, scale)
        return self.losses[0]

    def measure(self, batch: Batch, measure: LossFunction, micro: int) -> torch.Tensor | None:
        return self._inner.measure(batch, measure, micro)

    @torch.no_grad()
    def _reset(self, buffers: list[torch.Tensor]) -> None:
        """Remove the gradients and statistics that the previous rank left."""
        for _, parameter in self.named_parameters():
            parameter.grad = None
        for (_, buffer), value in zip(self.named_buffers(), buffers, strict=True):
            buffer.copy_(value)


def _do_nothing() -> None:
    pass
