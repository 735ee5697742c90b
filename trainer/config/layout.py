"""The layout of a run: how many ranks each axis of parallelism has.

Free of torch, because the configuration checks and the simulator use it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

from trainer.config.errors import LARGEST_DIVISOR, ConfigError, ConfigProblem, list_divisors, list_nearest_multiples
from trainer.config.schema import ParallelConfig

AXES = ("pipeline", "replicate", "shard", "context", "tensor")
DATA_AXES = ("replicate", "shard")
"""Axes of a Mesh over which ranks hold different tokens: other samples, or other parts of the same samples.

A mesh counts the ranks of the context axis to one of them, see `Layout.merge_context`.
"""
EXPERT_AXES = ("expert_replicate", "expert")
"""Axes over which experts are spread: another division of the ranks that hold different tokens."""
_MOST_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Number of ranks along each axis.

    Rank numbers increase along tensor first and along pipeline last, so that tensor groups stay inside a node.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    """Ranks of the data and context axes that share the experts of each layer."""

    @property
    def expert_replicate(self) -> int:
        return self.dp_size * self.context // self.expert

    @property
    def world_size(self) -> int:
        return math.prod(size for _, size in self.mesh_dims())

    @property
    def dp_size(self) -> int:
        """Number of ranks, or groups of context ranks, that hold different samples."""
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

    def list_groups(self, axis: str) -> list[list[int]]:
        """Return the groups of ranks that differ only in their place on an axis."""
        groups: dict[tuple[int, ...], list[int]] = {}
        others = [name for name in AXES if name != axis]
        for rank in range(self.world_size):
            groups.setdefault(tuple(self.coordinate(rank, name) for name in others), []).append(rank)
        return list(groups.values())

    def merge_context(self, *, uses_fully_shard: bool) -> Layout:
        """Return the layout of the weights, in which the context axis is a part of shard or of replicate.

        Ranks with different parts of a sequence have different gradients of the same weights, as data-parallel ranks
        have. With fully_shard they share one copy of the weights, otherwise each has its own.
        """
        axis = "shard" if uses_fully_shard else "replicate"
        return replace(self, context=1, **{axis: getattr(self, axis) * self.context})


def find_length_factor(context: int, tensor: int) -> tuple[int, str]:
    """Return the number by which context ranks need sequences to be divisible, and its name.

    Each rank has two chunks of a sequence, and tensor parallel ranks hold equal parts of its tokens between the layers.
    """
    factor = math.lcm(2 * context, context * tensor)
    if factor == 2 * context:
        return factor, f"2 x parallel.context {context}"
    return factor, f"{'2 x ' if tensor % 2 else ''}context {context} x tensor {tensor}"


def check_vocabulary(tokens: int, ranks: int) -> list[ConfigProblem]:
    """Return a problem if tensor parallelism leaves a rank without any token of the vocabulary."""
    if _fills_parts(tokens, ranks):
        return []
    # No more parts than tokens can be filled, and the largest numbers are the nearest ones.
    downwards = (count for count in range(min(ranks, tokens, LARGEST_DIVISOR), 0, -1) if _fills_parts(tokens, count))
    allowed = sorted(islice(downwards, _MOST_LISTED))
    message = f"{ranks}, but parts of {-(-tokens // ranks)} of the {tokens} tokens of the vocabulary leave none for "
    message += "the last rank"
    fix = f"use one of {', '.join(map(str, allowed))}, or a larger vocabulary"
    return [ConfigProblem("parallel.tensor", message, fix)]


def resolve_layout(parallel: ParallelConfig, world_size: int, local_size: int) -> Layout:
    """Return the layout of `world_size` ranks, or raise a ConfigError that names the numbers that would fit."""
    layout = _resolve_axes(parallel, world_size, local_size)
    ranks = layout.dp_size * layout.context
    if ranks % parallel.expert:
        kind = "data-parallel" if layout.context == 1 else "data x context"
        raise _error(
            "parallel.expert",
            f"{parallel.expert} does not divide the {ranks} {kind} ranks",
            f"use one of {list_divisors(ranks)}",
        )
    return replace(layout, expert=parallel.expert)


def _fills_parts(rows: int, parts: int) -> bool:
    """Return whether every part has a row; torch's parts have the same size, except for those at the end."""
    return -(-rows // parts) * (parts - 1) < rows


def _resolve_axes(parallel: ParallelConfig, world_size: int, local_size: int) -> Layout:
    model_ranks = parallel.pipeline * parallel.context * parallel.tensor
    if world_size % model_ranks:
        raise _error(
            "parallel",
            f"{_describe_axes(parallel)} = {model_ranks} does not divide {world_size} ranks",
            f"use {list_nearest_multiples(world_size, model_ranks)} ranks, "
            f"or a {_describe_axes(parallel, with_sizes=False)} out of {list_divisors(world_size)}",
        )
    data_ranks = world_size // model_ranks
    split = Layout(pipeline=parallel.pipeline, context=parallel.context, tensor=parallel.tensor)
    if parallel.strategy == "single":
        _check_single(parallel, world_size, data_ranks)
        return split
    if parallel.strategy == "ddp":
        return replace(split, replicate=data_ranks)
    if parallel.strategy == "fsdp":
        return replace(split, shard=data_ranks)
    if parallel.strategy == "hsdp":
        shard = _resolve_shard(parallel, data_ranks, local_size)
        return replace(split, replicate=data_ranks // shard, shard=shard)
    raise ValueError(f"strategy {parallel.strategy!r} has to be chosen before ranks are laid out")


def _check_single(parallel: ParallelConfig, world_size: int, data_ranks: int) -> None:
    if data_ranks > 1:
        raise _error(
            "parallel.strategy",
            f"single uses {_describe_axes(parallel)} ranks, but there are {world_size}",
            f"set parallel.strategy to ddp, fsdp or hsdp, or start {world_size // data_ranks}",
        )


def _resolve_shard(parallel: ParallelConfig, data_ranks: int, local_size: int) -> int:
    """Return the size of the shard axis; `parallel.shard` counts context ranks too, which share the copy."""
    context = parallel.context
    copies_ranks = data_ranks * context
    if parallel.shard % context:
        raise _error(
            "parallel.shard",
            f"{parallel.shard} is not a multiple of parallel.context {context}, whose ranks share one copy",
            f"use {list_nearest_multiples(parallel.shard, context)}, or 0 for the ranks of a node",
        )
    # By default the ranks of a node that are not in one tensor group share one copy; a pipeline spans nodes.
    shard = parallel.shard or max(1, min(copies_ranks, local_size // parallel.tensor) // context) * context
    if copies_ranks % shard:
        raise _error(
            "parallel.shard",
            f"{shard} does not divide the {copies_ranks} {'data-parallel' if context == 1 else 'data x context'} ranks",
            f"use one of {list_divisors(copies_ranks, context)}",
        )
    return shard // context


def _describe_axes(parallel: ParallelConfig, *, with_sizes: bool = True) -> str:
    """Return the axes that do not share the batch; context only if it is in use."""
    axes = ["pipeline", *(["context"] if parallel.context > 1 else []), "tensor"]
    return " x ".join(f"{axis} {getattr(parallel, axis)}" if with_sizes else axis for axis in axes)


def _error(where: str, message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem(where, message, fix)])
