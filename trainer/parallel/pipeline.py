"""Consecutive layers on different ranks, micro-batches in flight between them: torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import ParallelConfig
from trainer.parallel import names
from trainer.parallel.engine import Batch, LossFunction
from trainer.parallel.mesh import Mesh
from trainer.parallel.recipe import Recipe
from trainer.parallel.stages import indices_of, stage_count
from trainer.precision import DTYPES


@dataclass(frozen=True)
class Widths:
    hidden: int
    outputs: int


class PipelineEngine:
    """torch's schedules sum gradients of all micro-batches on each stage and reduce them over data ranks once."""

    def __init__(self, stages: list[nn.Module], widths: Widths, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        self.mesh = mesh
        self.modules = stages
        self.choices = choices
        self._recipe = recipe
        self._widths = widths
        self._schedules: dict[tuple[Any, ...], Any] = {}
        self._scale: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._parameters = names.parameters(stages)
        if recipe.parallel.accumulate != "defer":
            choices.append("accumulate: pipeline stages reduce gradients after the last micro-batch")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parameters.items()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from names.persistent_buffers(self.modules).items()

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        inputs, targets = batch["inputs"], batch["targets"]
        schedule = self._schedule(loss_fn, tuple(inputs.shape), micro)
        place, last = self.mesh.coordinate("pipeline"), self.mesh.layout.pipeline - 1
        self._scale, self._losses = scale, []
        arguments = (inputs.contiguous(),) if place == 0 else ()
        schedule.step(*arguments, target=targets if place == last else None, return_outputs=False)
        total = torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=self.mesh.device)
        return self.mesh.sum_over(total, "pipeline")

    def _schedule(self, loss_fn: LossFunction, shape: tuple[int, ...], micro: int) -> Any:
        key = (loss_fn, shape, micro)
        if key not in self._schedules:
            count = shape[0] // micro
            refuse_count(self._recipe.parallel, count)
            stages = [self._stage(module, index, (micro, *shape[1:])) for index, module in self._numbered()]
            self._schedules[key] = _schedule_of(self._recipe.parallel, stages, count, self._scaled(loss_fn, count))
        return self._schedules[key]

    def _numbered(self) -> list[tuple[int, nn.Module]]:
        indices = indices_of(self._recipe.parallel, self.mesh.coordinate("pipeline"))
        return list(zip(indices, self.modules, strict=True))

    def _stage(self, module: nn.Module, index: int, shape: tuple[int, ...]) -> Any:
        """A stage whose shapes are said: torch would find them by running the model once more."""
        from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415

        count = stage_count(self._recipe.parallel)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        return PipelineStage(
            module,
            index,
            count,
            self.mesh.device,
            input_args=(tokens if index == 0 else self._hidden(shape),),
            output_args=(self._outputs(shape) if index == count - 1 else self._hidden(shape),),
            group=self.mesh.group("pipeline"),
        )

    def _hidden(self, shape: tuple[int, ...]) -> torch.Tensor:
        """What goes from stage to stage. Autocast leaves the residual stream fp32; tensor ranks hold parts of it."""
        is_cast = self._recipe.is_sharded(self.mesh.layout)
        dtype = DTYPES[self._recipe.precision] if is_cast else torch.float32
        part = (shape[0], shape[1] // self.mesh.layout.tensor, self._widths.hidden)
        return torch.empty(part, dtype=dtype, device="meta", requires_grad=True)

    def _outputs(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = DTYPES[self._recipe.precision]
        return torch.empty((*shape, self._widths.outputs), dtype=dtype, device="meta", requires_grad=True)

    def _scaled(self, loss_fn: LossFunction, count: int) -> LossFunction:
        def scaled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = loss_fn(outputs, targets) / count
            self._losses.append(loss.detach())
            return loss if self._scale is None else loss * self._scale

        return scaled


def send_contiguous(stage: nn.Module) -> nn.Module:
    """Tensor parallel layers leave gaps between rows, which torch 2.11 refuses to send."""
    forward = stage.forward

    def contiguous_forward(inputs: torch.Tensor) -> torch.Tensor:
        return forward(inputs).contiguous()

    stage.forward = contiguous_forward
    return stage


def _schedule_of(parallel: ParallelConfig, stages: list[Any], count: int, loss_fn: LossFunction) -> Any:
    from torch.distributed.pipelining import (  # noqa: PLC0415
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    # The loss is divided already: no second pass over the gradients.
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, count, loss_fn=loss_fn, scale_grads=False)
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], count, loss_fn=loss_fn, scale_grads=False)


def refuse_count(parallel: ParallelConfig, count: int) -> None:
    """A pipeline cannot be filled with any number of micro-batches."""
    rounds = max(1, count // parallel.pipeline)
    if parallel.schedule == "1f1b" and count < parallel.pipeline:
        fix = f"use a batch.micro that makes {parallel.pipeline} or more, or parallel.schedule gpipe"
    elif parallel.schedule == "interleaved" and count % rounds:
        fix = f"use a batch.micro that makes a multiple of {parallel.pipeline}"
    else:
        return
    message = f"{count} micro-batches do not fit a {parallel.schedule} pipeline of {parallel.pipeline} ranks"
    raise ConfigError([ConfigProblem("batch.micro", message, fix)])
