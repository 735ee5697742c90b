"""The engine of one GPU that replays a micro-batch as one CUDA graph, instead of launching its kernels one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.parallel.engine import Batch, LossFunction, Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.units import Units

_WARMUP_RUNS = 3
"""Micro-batches before the one that is recorded: compilers and libraries choose their kernels in them."""


class GraphEngine(PlainEngine):
    """The engine that records a micro-batch of each shape and replays it; documents make each one different."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, units, recipe, mesh, choices)
        self._graphs: dict[Any, MicroBatchGraph] = {}

    def differentiate(
        self, batch: Batch, loss_fn: LossFunction, count: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        if "documents" in batch:
            return super().differentiate(batch, loss_fn, count, scale)
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        key = (loss_fn, count, shapes, scale is None)
        if key not in self._graphs:
            run = super().differentiate

            def differentiate(inputs: Batch, factor: torch.Tensor | None) -> torch.Tensor:
                return run(inputs, loss_fn, count, factor)

            weights = [value for _, value in self.named_parameters()]
            self._graphs[key] = MicroBatchGraph(differentiate, weights, count)
        return self._graphs[key].run(batch, scale)


class MicroBatchGraph:
    """The loss and the gradients of a micro-batch, by a graph that reads and writes tensors at fixed places."""

    def __init__(
        self,
        differentiate: Callable[[Batch, torch.Tensor | None], torch.Tensor],
        weights: list[nn.Parameter],
        count: int,
    ) -> None:
        """`differentiate` adds to the gradients of the weights; a step runs it `count` times."""
        self._differentiate = differentiate
        self._weights = [weight for weight in weights if weight.requires_grad]
        self._count = count
        self._runs = 0
        self._stream = torch.cuda.Stream()
        self._graph: Any = None
        self._inputs: Batch = {}
        self._scale: torch.Tensor | None = None

    def run(self, batch: Batch, scale: torch.Tensor | None) -> torch.Tensor:
        """Return the loss, and add to the gradients of the weights."""
        if self._runs < _WARMUP_RUNS:
            self._runs += 1
            return self._run_aside(batch, scale)
        if self._graph is None:
            self._record(batch, scale)
        for name, tensor in batch.items():
            self._inputs[name].copy_(tensor)
        if scale is not None and self._scale is not None:
            self._scale.copy_(scale)
        self._graph.replay()
        self._add_gradients()
        return self._loss.clone()

    def _run_aside(self, batch: Batch, scale: torch.Tensor | None) -> torch.Tensor:
        """Run on another stream, as the recorded micro-batch will be."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._differentiate(batch, scale)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, batch: Batch, scale: torch.Tensor | None) -> None:
        self._inputs = {name: tensor.clone() for name, tensor in batch.items()}
        self._scale = None if scale is None else scale.clone()
        before = [weight.grad for weight in self._weights]
        for weight in self._weights:
            weight.grad = None
        self._graph = torch.cuda.CUDAGraph()
        # Threads of the loader and of checkpoints call CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = self._differentiate(self._inputs, self._scale)
        # Weights that the loss does not depend on have none.
        used = [(weight, weight.grad) for weight in self._weights if weight.grad is not None]
        self._used, self._gradients = [weight for weight, _ in used], [gradient for _, gradient in used]
        self._sums = [torch.empty_like(gradient) for gradient in self._gradients] if self._count > 1 else []
        for weight, gradient in zip(self._weights, before, strict=True):
            weight.grad = gradient

    @torch.no_grad()
    def _add_gradients(self) -> None:
        """Give the weights the gradients of the replay, or add them to those that they have."""
        if self._used and self._used[0].grad is not None:
            torch._foreach_add_([weight.grad for weight in self._used], self._gradients)
            return
        gradients = self._gradients
        if self._sums:
            # The next replay overwrites the gradients of this one.
            torch._foreach_copy_(self._sums, self._gradients)
            gradients = self._sums
        for weight, gradient in zip(self._used, gradients, strict=True):
            weight.grad = gradient
