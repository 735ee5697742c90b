"""Consecutive parts of a decoder, one for each stage of a pipeline."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import ParallelConfig


def stage_count(parallel: ParallelConfig) -> int:
    return parallel.pipeline * (parallel.virtual_stages if parallel.schedule == "interleaved" else 1)


def indices_of(parallel: ParallelConfig, coordinate: int) -> list[int]:
    """The stages of one rank: interleaved ones go round the ranks."""
    return list(range(coordinate, stage_count(parallel), parallel.pipeline))


def cut(model: nn.Module, index: int, count: int) -> nn.Module:
    """Stage `index` of `count`: the same class with only its own layers, and the ends only where they belong."""
    part: Any = copy.deepcopy(model)
    names = list(part.layers)
    kept = set(names[slice(*bounds(len(names), index, count))])
    for name in names:
        if name not in kept:
            del part.layers[name]
    dropped = (() if index == 0 else ("embed", "positions")) + (() if index == count - 1 else ("norm", "head"))
    for name in dropped:
        if hasattr(part, name):
            setattr(part, name, None)
    return part


def bounds(layers: int, index: int, count: int) -> tuple[int, int]:
    """First and last layer (exclusive) of a stage; the ends, which also hold embedding and head, get fewer."""
    if layers < count:
        message = f"{count} stages need as many layers, the model has {layers}"
        raise ConfigError([ConfigProblem("parallel.pipeline", message, f"use at most {layers} stages")])
    each, extra = divmod(layers, count)
    before = (count - extra) // 2
    sizes = [each + (before <= stage < before + extra) for stage in range(count)]
    return sum(sizes[:index]), sum(sizes[: index + 1])
