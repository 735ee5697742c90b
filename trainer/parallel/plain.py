"""One rank holds the whole model; the base of the engines that wrap it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from trainer.config.schema import CompileConfig
from trainer.parallel import names
from trainer.parallel.engine import Batch, LossFunction, micro_batches
from trainer.parallel.mesh import Mesh


class PlainEngine:
    """Runs micro-batches one after the other; what happens between them is up to the engine built on it."""

    def __init__(self, model: nn.Module, mesh: Mesh, compiled: CompileConfig, choices: list[str]) -> None:
        self.mesh = mesh
        self.modules = [model]
        self.choices = choices
        self._compiled = compiled
        self._whole: dict[LossFunction, Callable[[Batch], torch.Tensor]] = {}
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
        run = self._run(loss_fn)
        total = None
        for index, piece in enumerate(pieces):
            with self.between(index, len(pieces)):
                loss = run(piece) / len(pieces)
                (loss if scale is None else loss * scale).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None  # noqa: S101
        return total

    def between(self, index: int, count: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """What to do around micro-batch `index` of `count`."""
        return nullcontext()

    def _run(self, loss_fn: LossFunction) -> Callable[[Batch], torch.Tensor]:
        if loss_fn not in self._whole:
            model = self.modules[0]

            def run(batch: Batch) -> torch.Tensor:
                return loss_fn(model(batch["inputs"]), batch["targets"])

            whole = self._compiled.mode == "whole"
            self._whole[loss_fn] = torch.compile(run, backend=self._compiled.backend) if whole else run
        return self._whole[loss_fn]
