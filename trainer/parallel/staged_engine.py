"""The base of engines that run the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn

from trainer.models.head import Objective
from trainer.parallel import modules
from trainer.parallel.engine import (
    Batch,
    BetweenMicroBatches,
    LossFunction,
    Recipe,
    do_nothing,
    run_model,
    run_objective,
    split_batch,
)
from trainer.parallel.mesh import Mesh
from trainer.parallel.stages import Ends, count_stages, list_stages
from trainer.parallel.units import Units
from trainer.precision import DTYPES

if TYPE_CHECKING:
    from trainer.compression.compression import Compression

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


class StagedEngine:
    """The stages of this rank, and all that does not depend on the schedule: the parameters, and measuring."""

    def __init__(  # noqa: PLR0913 - all of them are needed
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
        self._indices = list_stages(recipe.parallel, mesh.coordinate("pipeline"))
        """The numbers of this rank's stages."""
        self._last = count_stages(recipe.parallel) - 1
        self._parameters = modules.named_parameters(stages)
        if recipe.parallel.accumulate != "defer":
            choices.append("accumulate: pipeline stages reduce gradients after the last micro-batch")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parameters.items()

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        # Sharded stages would have to gather theirs, but only replays use them, and those reject pipelines.
        return dict(self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from modules.named_persistent_buffers(self.modules).items()

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def measure(self, batch: Batch, measure: LossFunction, micro: int) -> torch.Tensor | None:
        sums = []
        for piece in split_batch(batch, micro):
            value = self._measure(piece, measure)
            if value is not None:
                sums.append(value)
        return torch.stack(sums).sum(0) if sums else None

    def _measure(self, batch: Batch, measure: LossFunction) -> torch.Tensor | None:
        """Run a micro-batch through this rank's stages and measure the outputs of the model on the last rank.

        Schedules are for training. Without a backward pass, micro-batches simply follow each other; an interleaved
        pipeline runs one of them at a time.
        """
        inputs = batch["inputs"]
        ranks, group = self.mesh.layout.pipeline, self.mesh.group("pipeline")
        for index, stage in zip(self._indices, self.modules, strict=True):
            hidden = inputs
            if index > 0:
                hidden = torch.empty_like(self._describe_hidden(tuple(inputs.shape)), device=self.mesh.device)
                dist.recv(hidden, group=group, group_src=(index - 1) % ranks)
            piece = {**batch, "inputs": hidden}
            if index == self._last:
                return run_objective(stage, piece, measure, self._find_objective(measure))
            outputs: torch.Tensor = run_model(stage, piece)
            dist.send(outputs, group=group, group_dst=(index + 1) % ranks)
        return None

    def _find_objective(self, loss_fn: LossFunction) -> Objective | None:
        return getattr(loss_fn, "from_hidden", None) if self.takes_objective else None

    def _describe_hidden(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor without memory that has the shape and type of those sent between stages.

        Autocast leaves the residual stream in fp32, unless the model casts it; each tensor parallel rank holds a part.
        """
        is_bf16 = self._ends.casts_residual and self._recipe.precision == "bf16"
        is_cast = is_bf16 or self._recipe.uses_fully_shard(self.mesh.layout)
        dtype = DTYPES[self._recipe.precision] if is_cast else torch.float32
        part = (shape[0], shape[1] // self.mesh.layout.tensor, self._ends.hidden)
        return torch.empty(part, dtype=dtype, device="meta", requires_grad=True)
