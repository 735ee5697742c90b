"""The engine of a rank that holds the whole model, and the base of the engines that wrap it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer.models.head import takes_objective
from trainer.parallel import modules
from trainer.parallel.engine import (
    Batch,
    BetweenMicroBatches,
    LossFunction,
    Recipe,
    do_nothing,
    find_objective,
    run_objective,
    split_batch,
)
from trainer.parallel.experts import average_expert_gradients
from trainer.parallel.mesh import Mesh
from trainer.parallel.unit_calls import check_calls
from trainer.parallel.units import Units

if TYPE_CHECKING:
    from trainer.compression.compression import Compression


class PlainEngine:
    """The engine that runs micro-batches one after the other; derived engines decide what happens between them."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        self.mesh = mesh
        self.modules = [model]
        self.units = units
        self.takes_objective = takes_objective(model)
        self.choices = choices
        self.before_micro_batch: BetweenMicroBatches = do_nothing
        self.compression: Compression | None = None
        self._recipe = recipe
        self._loss_functions: dict[LossFunction, Callable[[Batch], torch.Tensor]] = {}
        # Hooks on the units would be part of a graph of the whole model, which would then be compiled twice.
        is_whole = recipe.compiled.mode == "whole" and not recipe.compiles_blocks(mesh.layout)
        self._checks_calls = recipe.uses_units(mesh.layout) and not is_whole
        # These are listed once, because the model lists gathered parameters while fully_shard has them gathered.
        self._parameters = modules.named_parameters(self.modules)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parameters.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from modules.named_persistent_buffers(self.modules).items()

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(()) if self.compression is None else self.compression.private_tensors()

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._parameters)

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        pieces = split_batch(batch, micro)
        total = torch.zeros((), device=self.mesh.device)
        for index, piece in enumerate(pieces):
            if index:
                self.before_micro_batch(index, len(pieces))
            with self.around(index, len(pieces)), self._check_calls():
                total += self.differentiate(piece, loss_fn, len(pieces), scale)
        average_expert_gradients(self._parameters.values(), self.mesh)
        return total

    def differentiate(
        self, batch: Batch, loss_fn: LossFunction, count: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the gradients of one of `count` micro-batches to those of the weights, return its part of the mean."""
        loss = self._make_loss(loss_fn)(batch) / count
        (loss if scale is None else loss * scale).backward()
        return loss.detach()

    def measure(self, batch: Batch, measure: LossFunction, micro: int) -> torch.Tensor | None:
        compute = self._make_loss(measure)
        return torch.stack([compute(piece) for piece in split_batch(batch, micro)]).sum(0)

    def around(self, index: int, count: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context in which micro-batch `index` of `count` runs."""
        return nullcontext()

    def _check_calls(self) -> AbstractContextManager[None]:
        """Return the context that checks the calls of units, in the first micro-batch only."""
        checks, self._checks_calls = self._checks_calls, False
        return check_calls(self.units) if checks else nullcontext()

    def _make_loss(self, loss_fn: LossFunction) -> Callable[[Batch], torch.Tensor]:
        """Return the function from a micro-batch to its loss, which is one graph if the whole model is compiled."""
        if loss_fn not in self._loss_functions:
            model, compiled = self.modules[0], self._recipe.compiled
            objective = find_objective(model, loss_fn)

            def compute_loss(batch: Batch) -> torch.Tensor:
                return run_objective(model, batch, loss_fn, objective)

            is_whole = compiled.mode == "whole" and not self._recipe.compiles_blocks(self.mesh.layout)
            self._loss_functions[loss_fn] = (
                torch.compile(compute_loss, backend=compiled.backend) if is_whole else compute_loss
            )
        return self._loss_functions[loss_fn]
