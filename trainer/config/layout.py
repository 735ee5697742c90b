"""The layout of a run: how many ranks each axis of parallelism has.

Free of torch, because the configuration checks and the simulator use it too.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.errors import ConfigError, ConfigProblem, list_divisors, list_nearest_multiples
from trainer.config.schema import ParallelConfig

AXES = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Layout:
    """Number of ranks along each axis.

    Rank numbers increase along tensor first and along pipeline last, so that tensor groups stay inside a node.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def world_size(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.tensor

    @property
    def dp_size(self) -> int:
        return self.replicate * self.shard

    def mesh_dims(self) -> tuple[tuple[str, int], ...]:
        return tuple((axis, getattr(self, axis)) for axis in AXES)

    def coordinate(self, rank: int, axis: str) -> int:
        for name, size in reversed(self.mesh_dims()):
            if name == axis:
                return rank % size
            rank //= size
        raise KeyError(axis)

    def dp_rank(self, rank: int) -> int:
        return self.coordinate(rank, "replicate") * self.shard + self.coordinate(rank, "shard")


def resolve_layout(parallel: ParallelConfig, world_size: int, local_size: int) -> Layout:
    """Return the layout of `world_size` ranks, or raise a ConfigError that names the numbers that would fit."""
    model_ranks = parallel.pipeline * parallel.tensor
    if world_size % model_ranks:
        raise _error(
            "parallel",
            f"pipeline {parallel.pipeline} x tensor {parallel.tensor} = {model_ranks} "
            f"does not divide {world_size} ranks",
            f"use {list_nearest_multiples(world_size, model_ranks)} ranks, "
            f"or a pipeline x tensor out of {list_divisors(world_size)}",
        )
    data_ranks = world_size // model_ranks
    if parallel.strategy == "single":
        return _resolve_single(parallel, world_size, data_ranks)
    if parallel.strategy == "ddp":
        return Layout(parallel.pipeline, data_ranks, 1, parallel.tensor)
    if parallel.strategy == "fsdp":
        return Layout(parallel.pipeline, 1, data_ranks, parallel.tensor)
    if parallel.strategy == "hsdp":
        return _resolve_hsdp(parallel, data_ranks, local_size)
    raise ValueError(f"strategy {parallel.strategy!r} has to be chosen before ranks are laid out")


def _resolve_single(parallel: ParallelConfig, world_size: int, data_ranks: int) -> Layout:
    if data_ranks > 1:
        raise _error(
            "parallel.strategy",
            f"single uses pipeline {parallel.pipeline} x tensor {parallel.tensor} ranks, but there are {world_size}",
            f"set parallel.strategy to ddp, fsdp or hsdp, or start {world_size // data_ranks}",
        )
    return Layout(parallel.pipeline, 1, 1, parallel.tensor)


def _resolve_hsdp(parallel: ParallelConfig, data_ranks: int, local_size: int) -> Layout:
    # By default the data-parallel ranks of a node share one copy; a pipeline spans nodes.
    shard = parallel.shard or max(1, min(data_ranks, local_size // parallel.tensor))
    if data_ranks % shard:
        raise _error(
            "parallel.shard",
            f"{shard} does not divide the {data_ranks} data-parallel ranks",
            f"use one of {list_divisors(data_ranks)}",
        )
    return Layout(parallel.pipeline, data_ranks // shard, shard, parallel.tensor)


def _error(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, message, fix)])
