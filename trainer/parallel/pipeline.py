"""Pipeline parallelism: consecutive layers on different ranks, with micro-batches in flight between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trainer.config.schema import ParallelConfig
from trainer.parallel.engine import Batch, LossFunction, place_documents, select_documents
from trainer.parallel.experts import average_expert_gradients
from trainer.parallel.staged_engine import StagedEngine
from trainer.parallel.stages import check_micro_batches, count_stages
from trainer.precision import DTYPES


class PipelineEngine(StagedEngine):
    """The engine that runs torch's schedules, which reduce gradients once, after summing those of all micro-batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._schedules: dict[tuple[Any, ...], Any] = {}
        self._scale: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []

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

    def _get_schedule(self, loss_fn: LossFunction, shape: tuple[int, ...], micro: int) -> Any:
        key = (loss_fn, shape, micro)
        if key not in self._schedules:
            count = shape[0] // micro
            check_micro_batches(self._recipe.parallel, count)
            has_loss = self._find_objective(loss_fn) is not None
            stages = [
                self._make_stage(module, index, (micro, *shape[1:]), has_loss=has_loss)
                for index, module in zip(self._indices, self.modules, strict=True)
            ]
            self._schedules[key] = _make_schedule(
                self._recipe.parallel, stages, count, self._scale_loss(loss_fn, count)
            )
        return self._schedules[key]

    def _select_objective(self, loss_fn: LossFunction, targets: torch.Tensor) -> dict[str, Any]:
        """Return the keyword arguments with which the last stage computes the loss itself."""
        objective = self._find_objective(loss_fn)
        is_last = self.mesh.coordinate("pipeline") == self.mesh.layout.pipeline - 1
        return {"objective": objective, "targets": targets} if objective is not None and is_last else {}

    def _make_stage(self, module: nn.Module, index: int, shape: tuple[int, ...], *, has_loss: bool) -> Any:
        """Return a stage with the shapes of its inputs and outputs; torch would run the model once to find them.

        `has_loss` means that the last stage returns the loss of a micro-batch instead of its outputs.
        """
        count = count_stages(self._recipe.parallel)
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


def _make_schedule(parallel: ParallelConfig, stages: list[Any], count: int, loss_fn: LossFunction) -> Any:
    # The loss is divided already, so torch need not scale the gradients.
    if parallel.schedule == "interleaved":
        return ScheduleInterleaved1F1B(stages, count, loss_fn=loss_fn, scale_grads=False)
    kind = ScheduleGPipe if parallel.schedule == "gpipe" else Schedule1F1B
    return kind(stages[0], count, loss_fn=loss_fn, scale_grads=False)
