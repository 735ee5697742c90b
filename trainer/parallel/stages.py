"""Cut a model into the stages of a pipeline: consecutive layers, of which each rank holds some."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import ParallelConfig


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


def send_contiguous(stage: nn.Module) -> None:
    """Make the stage's outputs contiguous: tensor parallel layers leave gaps between rows, which torch 2.11 rejects."""
    forward = stage.forward

    def contiguous_forward(inputs: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return forward(inputs, **kwargs).contiguous()

    stage.forward = contiguous_forward


def list_stages(parallel: ParallelConfig, coordinate: int) -> list[int]:
    """Return the stages of a rank; interleaved stages are dealt out to the ranks in turn."""
    return list(range(coordinate, count_stages(parallel), parallel.pipeline))


def cut_stage(model: nn.Module, index: int, parallel: ParallelConfig) -> nn.Module:
    """Return a stage: a copy of the model with only its own layers, and with only the ends that belong to it."""
    count = count_stages(parallel)
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
    if parallel.schedule in ("1f1b", "zero_bubble") and count < parallel.pipeline:
        fix = f"use a batch.micro that makes {parallel.pipeline} or more, or parallel.schedule gpipe"
    elif parallel.schedule == "interleaved" and count % rounds:
        fix = f"use a batch.micro that makes a multiple of {parallel.pipeline}"
    else:
        return
    message = (
        f"a pipeline of {parallel.pipeline} ranks with schedule {parallel.schedule} cannot run {count} micro-batches"
    )
    raise ConfigError([ConfigProblem("batch.micro", message, fix)])


def count_stages(parallel: ParallelConfig) -> int:
    """Return the stages of all ranks."""
    return parallel.pipeline * (parallel.virtual_stages if parallel.schedule == "interleaved" else 1)
