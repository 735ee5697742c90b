"""How many ranks each axis has. Free of torch: the config check and the simulator ask here too."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import ParallelConfig

AXES = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes; ranks count up along tensor first, pipeline last, so tensor groups stay inside a node."""

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


def resolve(parallel: ParallelConfig, world_size: int, local_size: int) -> Layout:
    """The layout of this many ranks, or a ConfigError that says which numbers would fit."""
    fixed = parallel.pipeline * parallel.tensor
    if world_size % fixed:
        raise _problem(
            "parallel",
            f"pipeline {parallel.pipeline} x tensor {parallel.tensor} = {fixed} does not divide {world_size} ranks",
            f"use {_near(world_size, fixed)} ranks, or a pipeline x tensor out of {_divisors(world_size)}",
        )
    rest = world_size // fixed
    if parallel.strategy == "single":
        return _single(parallel, world_size, rest)
    if parallel.strategy == "ddp":
        return Layout(parallel.pipeline, rest, 1, parallel.tensor)
    if parallel.strategy == "fsdp":
        return Layout(parallel.pipeline, 1, rest, parallel.tensor)
    if parallel.strategy == "hsdp":
        return _hsdp(parallel, rest, local_size)
    raise ValueError(f"strategy {parallel.strategy!r} has to be chosen before ranks are laid out")


def _single(parallel: ParallelConfig, world_size: int, rest: int) -> Layout:
    if rest > 1:
        raise _problem(
            "parallel.strategy",
            f"single uses pipeline {parallel.pipeline} x tensor {parallel.tensor} ranks, but there are {world_size}",
            f"set parallel.strategy to ddp, fsdp or hsdp, or start {world_size // rest}",
        )
    return Layout(parallel.pipeline, 1, 1, parallel.tensor)


def _hsdp(parallel: ParallelConfig, rest: int, local_size: int) -> Layout:
    # The ranks of a node that are left for data after tensor parallelism; a pipeline spans nodes.
    shard = parallel.shard or max(1, min(rest, local_size // parallel.tensor))
    if rest % shard:
        raise _problem(
            "parallel.shard",
            f"{shard} does not divide the {rest} data-parallel ranks",
            f"use one of {_divisors(rest)}",
        )
    return Layout(parallel.pipeline, rest // shard, shard, parallel.tensor)


def _problem(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem(where, message, fix)])


def _near(number: int, factor: int) -> str:
    below, above = number // factor * factor, (number // factor + 1) * factor
    return f"{below} or {above}" if below else str(above)


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
