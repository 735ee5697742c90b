"""The trainer's data-parallel engine, run for one rank after the other; what is left in it is what every rank has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from simulator.emulate.mesh import VirtualMesh
from trainer.parallel.engine import Batch, Engine, LossFunction
from trainer.parallel.mesh import Mesh


class VirtualEngine:
    """Seen from rank 0; the shares of the others come from `share_of(rank)`.

    Weights are one copy: every replica's are equal. Statistics of the forward pass, such as a batch norm's, differ by
    rank, and rank 0's are what a checkpoint keeps: it comes last.
    """

    def __init__(self, inner: Engine, mesh: VirtualMesh, share_of: Callable[[int], Batch]) -> None:
        self.mesh: Mesh = mesh
        self._turns = mesh
        self.share_of = share_of
        self.modules: list[nn.Module] = inner.modules
        self.choices: list[str] = inner.choices
        self.before_rank: Callable[[], None] = _nothing
        self.losses: list[torch.Tensor] = []
        """Of the last step, by rank."""
        self._inner = inner

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._inner.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._inner.named_buffers()

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        ranks = self.mesh.layout.dp_size
        before = [buffer.clone() for _, buffer in self.named_buffers()]
        self.losses = [torch.zeros(())] * ranks
        for rank in reversed(range(ranks)):
            self._forget(before)
            self._turns.turn_to(rank)
            self.before_rank()
            share = self.share_of(rank) if rank else batch
            self.losses[rank] = self._inner.forward_backward(share, loss_fn, micro, scale)
        return self.losses[0]

    @torch.no_grad()
    def _forget(self, buffers: list[torch.Tensor]) -> None:
        """What the rank before left behind."""
        for _, parameter in self.named_parameters():
            parameter.grad = None
        for (_, buffer), value in zip(self.named_buffers(), buffers, strict=True):
            buffer.copy_(value)


def _nothing() -> None:
    pass
