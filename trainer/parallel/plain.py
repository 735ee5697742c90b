"""One rank holds the whole model; the base of the engines that wrap it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from trainer.parallel import names
from trainer.parallel.engine import Batch, LossFunction, micro_batches
from trainer.parallel.mesh import Mesh
from trainer.parallel.recipe import Recipe


class PlainEngine:
    """Runs micro-batches one after the other; what happens between them is up to the engine built on it."""

    def __init__(self, model: nn.Module, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        self.mesh = mesh
        self.modules = [model]
        self.choices = choices
        self._recipe = recipe
        self._losses: dict[LossFunction, Callable[[Batch], torch.Tensor]] = {}
        # Taken once: while fully_shard has parameters gathered, the model shows the gathered ones.
        self._parameters = names.parameters(self.modules)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parameters.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from names.persistent_buffers(self.modules).items()

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        pieces = micro_batches(batch, micro)
        loss_of = self._loss_of(loss_fn)
        total = torch.zeros((), device=self.mesh.device)
        for index, piece in enumerate(pieces):
            with self.around(index, len(pieces)):
                loss = loss_of(piece) / len(pieces)
                (loss if scale is None else loss * scale).backward()
            total += loss.detach()
        return total

    def around(self, index: int, count: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """What holds while micro-batch `index` of `count` runs."""
        return nullcontext()

    def _loss_of(self, loss_fn: LossFunction) -> Callable[[Batch], torch.Tensor]:
        """The way from a micro-batch to its loss: one graph where the whole is compiled."""
        if loss_fn not in self._losses:
            model, compiled = self.modules[0], self._recipe.compiled

            def loss_of(batch: Batch) -> torch.Tensor:
                return loss_fn(model(batch["inputs"]), batch["targets"])

            is_whole = compiled.mode == "whole" and not self._recipe.compiles_blocks(self.mesh.layout)
            self._losses[loss_fn] = torch.compile(loss_of, backend=compiled.backend) if is_whole else loss_of
        return self._losses[loss_fn]
