"""Pipeline parallelism: consecutive layers on different ranks, with micro-batches in flight between them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import ParallelConfig
from trainer.models.head import Objective
from trainer.parallel import modules
from trainer.parallel.engine import (
    Batch,
    BetweenMicroBatches,
    LossFunction,
    Recipe,
    do_nothing,
    place_documents,
    run_model,
    run_objective,
    select_documents,
    split_batch,
)
from trainer.parallel.experts import average_expert_gradients
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units
from trainer.precision import DTYPES

if TYPE_CHECKING:
    from trainer.compression.compression import Compression


@dataclass(frozen=True)
class Ends:
    """Properties of the whole model that its stages share: values per token, and whether it computes the loss."""

    hidden: int
    """Values per token between stages."""
    outputs: int
    """Values per token at the end of the model."""
    takes_objective: bool
    casts_residual: bool
    """Whether the values between stages are bf16 if products are (trainer/models/residual.py)."""


class PipelineEngine:
    """The engine that runs torch's schedules, which reduce gradients once, after summing those of all micro-batches."""

    def __init__(  # noqa: PLR0913
        self, stages: list[nn.Module], units: Units, *, ends: Ends, recipe: Recipe, mesh: Mesh, choices: list[str]
    ) -> None:
        self.mesh = mesh
        self.modules = stages
        self.units = units
        self.takes_objective = ends.takes_objective
        self.choices = choices
        self.before_micro_batch: BetweenMicroBatches = do_nothing
        self.compression: Compression | None = None
        self._recipe = recipe
        self._ends = ends
        self._schedules: dict[tuple[Any, ...], Any] = {}
        self._scale: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._parameters = modules.named_parameters(stages)
        if recipe.parallel.accumulate != "defer":
            choices.append("accumulate: pipeline stages reduce gradients after the last micro-batch")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parameters.items()

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from modules.named_persistent_buffers(self.modules).items()

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        inputs, targets = batch["inputs"], batch["targets"]
        # torch's schedule cuts them into micro-batches, and wants the same arguments for each.
        documents = select_documents(place_documents(batch))
        schedule = self._get_schedule(loss_fn, tuple(inputs.shape), micro)
        place, last = self.mesh.coordinate("pipeline"), self.mesh.layout.pipeline - 1
        self._scale, self._losses = scale, []
        arguments = (inputs.contiguous(),) if place == 0 else ()
        schedule.step(
            *arguments,
            target=targets if place == last else None,
            return_outputs=False,
            **documents,
            **self._select_objective(loss_fn, targets),
        )
        average_expert_gradients(self._parameters.values(), self.mesh)
        total = torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=self.mesh.device)
        return self.mesh.sum_over(total, "pipeline")

    def measure(self, batch: Batch, measure: LossFunction, micro: int) -> torch.Tensor | None:
        sums = []
        for piece in split_batch(batch, micro):
            value = self._measure(piece, measure)
            if value is not None:
                sums.append(value)
        return torch.stack(sums).sum(0) if sums else None

    def _measure(self, batch: Batch, measure: LossFunction) -> torch.Tensor | None:
        """Run a micro-batch through this rank's stages and measure the outputs of the model on the last rank.

        torch's schedules are written for training. Without a backward pass, micro-batches simply follow each other; an
        interleaved pipeline runs one of them at a time.
        """
        inputs = batch["inputs"]
        ranks, last = self.mesh.layout.pipeline, _count_stages(self._recipe.parallel) - 1
        group = self.mesh.group("pipeline")
        for index, stage in zip(
            list_stages(self._recipe.parallel, self.mesh.coordinate("pipeline")), self.modules, strict=True
        ):
            hidden = inputs
            if index > 0:
                hidden = torch.empty_like(self._describe_hidden(tuple(inputs.shape)), device=self.mesh.device)
                dist.recv(hidden, group=group, group_src=(index - 1) % ranks)
            piece = {**batch, "inputs": hidden}
            if index == last:
                return run_objective(stage, piece, measure, self._find_objective(measure))
            outputs: torch.Tensor = run_model(stage, piece)
            dist.send(outputs, group=group, group_dst=(index + 1) % ranks)
        return None

    def _get_schedule(self, loss_fn: LossFunction, shape: tuple[int, ...], micro: int) -> Any:
        key = (loss_fn, shape, micro)
        if key not in self._schedules:
            count = shape[0] // micro
            check_micro_batches(self._recipe.parallel, count)
            indices = list_stages(self._recipe.parallel, self.mesh.coordinate("pipeline"))
            has_loss = self._find_objective(loss_fn) is not None
            stages = [
                self._make_stage(module, index, (micro, *shape[1:]), has_loss=has_loss)
                for index, module in zip(indices, self.modules, strict=True)
            ]
            self._schedules[key] = _make_schedule(
                self._recipe.parallel, stages, count, self._scale_loss(loss_fn, count)
            )
        return self._schedules[key]

    def _find_objective(self, loss_fn: LossFunction) -> Objective | None:
        return getattr(loss_fn, "from_hidden", None) if self.takes_objective else None

    def _select_objective(self, loss_fn: LossFunction, targets: torch.Tensor) -> dict[str, Any]:
        """Return the keyword arguments with which the last stage computes the loss itself."""
        objective = self._find_objective(loss_fn)
        is_last = self.mesh.coordinate("pipeline") == self.mesh.layout.pipeline - 1
        return {"objective": objective, "targets": targets} if objective is not None and is_last else {}

    def _make_stage(self, module: nn.Module, index: int, shape: tuple[int, ...], *, has_loss: bool) -> Any:
        """Return a stage with the shapes of its inputs and outputs; torch would run the model once to find them.

        `has_loss` means that the last stage returns the loss of a micro-batch instead of its outputs.
        """
        count = _count_stages(self._recipe.parallel)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        loss = torch.empty((), device="meta", requires_grad=True)
        last = loss if has_loss else self._describe_outputs(shape)
        return PipelineStage(
            module,
            index,
            count,
            self.mesh.device,
            input_args=(tokens if index == 0 else self._describe_hidden(shape),),
            output_args=(last if index == count - 1 else self._describe_hidden(shape),),
            group=self.mesh.group("pipeline"),
        )

    def _describe_hidden(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor without memory that has the shape and type of those sent between stages.

        Autocast leaves the residual stream in fp32, unless the model casts it; each tensor parallel rank holds a part.
        """
        is_bf16 = self._ends.casts_residual and self._recipe.precision == "bf16"
        is_cast = is_bf16 or self._recipe.uses_fully_shard(self.mesh.layout)
        dtype = DTYPES[self._recipe.precision] if is_cast else torch.float32
        part = (shape[0], shape[1] // self.mesh.layout.tensor, self._ends.hidden)
        return torch.empty(part, dtype=dtype, device="meta", requires_grad=True)

    def _describe_outputs(self, shape: tuple[int, ...]) -> torch.Tensor:
        dtype = DTYPES[self._recipe.precision]
        return torch.empty((*shape, self._ends.outputs), dtype=dtype, device="meta", requires_grad=True)

    def _scale_loss(self, loss_fn: LossFunction, count: int) -> LossFunction:
        is_loss = self._find_objective(loss_fn) is not None

        def compute_scaled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = (outputs if is_loss else loss_fn(outputs, targets)) / count
            self._losses.append(loss.detach())
            return loss if self._scale is None else loss * self._scale

        return compute_scaled


def send_contiguous(stage: nn.Module) -> None:
    """Make the stage's outputs contiguous: tensor parallel layers leave gaps between rows, which torch 2.11 rejects."""
    forward = stage.forward

    def contiguous_forward(inputs: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return forward(inputs, **kwargs).contiguous()

    stage.forward = contiguous_forward


def list_stages(parallel: ParallelConfig, coordinate: int) -> list[int]:
    """Return the stages of a rank; interleaved stages are dealt out to the ranks in turn."""
    return list(range(coordinate, _count_stages(parallel), parallel.pipeline))


def cut_stage(model: nn.Module, index: int, parallel: ParallelConfig) -> nn.Module:
    """Return a stage: a copy of the model with only its own layers, and with only the ends that belong to it."""
    count = _count_stages(parallel)
    stage: Any = copy.deepcopy(model)
    names = list(stage.layers)
    own_names = set(names[slice(*compute_bounds(len(names), index, count))])
    for name in names:
        if name not in own_names:
            del stage.layers[name]
    dropped = (() if index == 0 else ("embed", "positions")) + (() if index == count - 1 else ("norm", "head"))
    for name in dropped:
        if hasattr(stage, name):
            setattr(stage, name, None)
    return stage


def compute_bounds(layers: int, index: int, count: int) -> tuple[int, int]:
    """Return the first and last layer (exclusive) of a stage; stages with the embedding or the head get fewer."""
    if layers < count:
        message = f"{count} stages need at least {count} layers, the model has {layers}"
        raise ConfigError([ConfigProblem("parallel.pipeline", message, f"use at most {layers} stages")])
    each, extra = divmod(layers, count)
    before = (count - extra) // 2
    sizes = [each + (before <= stage < before + extra) for stage in range(count)]
    return sum(sizes[:index]), sum(sizes[: index + 1])


def check_micro_batches(parallel: ParallelConfig, count: int) -> None:
    """Raise ConfigError if the schedule cannot run this number of micro-batches."""
    rounds = max(1, count // parallel.pipeline)
    if parallel.schedule == "1f1b" and count < parallel.pipeline:
        fix = f"use a batch.micro that makes {parallel.pipeline} or more, or parallel.schedule gpipe"
    elif parallel.schedule == "interleaved" and count % rounds:
        fix = f"use a batch.micro that makes a multiple of {parallel.pipeline}"
    else:
        return
    message = (
        f"a pipeline of {parallel.pipeline} ranks with schedule {parallel.schedule} cannot run {count} micro-batches"
    )
    raise ConfigError([ConfigProblem("batch.micro", message, fix)])


def _count_stages(parallel: ParallelConfig) -> int:
    return parallel.pipeline * (parallel.virtual_stages if parallel.schedule == "interleaved" else 1)


def _make_schedule(parallel: ParallelConfig, stages: list[Any], count: int, loss_fn: LossFunction) -> Any:
    # The loss is divided already, so torch need not scale the gradients.
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, count, loss_fn=loss_fn, scale_grads=False)
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], count, loss_fn=loss_fn, scale_grads=False)
