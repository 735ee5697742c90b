"""The one place where engines average gradients over ranks, and so the place for another way of doing it.

`choose_average` returns how a run averages whole gradients: with the backend's all-reduce, with one of
`trainer.collectives` (`communication.pattern`), or compressed (`communication.compression`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn

from trainer.engines.lost_peer import name_peers
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.precision import DTYPES

if TYPE_CHECKING:
    from trainer.compression.background import CompressionThread
    from trainer.compression.compression import Compression, Part

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
# Start-up: the modules of patterns and compression are imported only by runs that use them.
# ruff: noqa: PLC0415

Wait = Callable[[], None]
"""A function that waits until values are averages."""
Start = Callable[[torch.Tensor, Sequence[nn.Parameter]], Wait]
"""A function that starts to average a flat bucket of the gradients of parameters, and returns the one that waits."""


@dataclass(frozen=True)
class Average:
    """A way to average the gradients of ranks."""

    start: Start
    divisor: int = 1
    """By which a rank divides its gradients before they start.

    To divide them while they are copied to a bucket reads and writes less memory than to divide the bucket.
    """


StartParts = Callable[[torch.Tensor, "Sequence[Part]"], Wait]
"""A function that starts to average the flat values of parts, and returns the one that waits."""


def choose_average(
    names: Mapping[nn.Parameter, str], recipe: Recipe, mesh: Mesh, choices: list[str]
) -> tuple[Average, Compression | None]:
    """Return how the gradients of trained parameters are averaged over the replicas, and the compression, if any.

    What was chosen for the user is added to `choices`, which the log prints.
    """
    group, dtype = mesh.group("replicate"), DTYPES[recipe.formats.reduced]
    if recipe.compresses(mesh):
        from trainer.compression.compression import Part

        parts = {parameter: Part(name, tuple(parameter.shape)) for parameter, name in names.items()}
        thread, compression = start_compression(list(parts.values()), recipe, mesh)
        return Average(lambda values, members: thread.start(values, [parts[member] for member in members])), compression
    if recipe.communication.pattern != "backend" and group is not None:
        from trainer.parallel.pattern_hook import make_pattern_hook

        hook = make_pattern_hook(recipe.communication.pattern, group, mesh)
        choices += hook.choices
        ranks = dist.get_world_size(group)
        return Average(lambda values, _: _wait_with_names(hook.start_sum(values).wait, group), ranks), None
    if group is None or any(parameter.dtype != dtype for parameter in names):
        return Average(lambda values, _: start_average(values, group, dtype)), None
    return Average(lambda values, _: start_sum(values, group), dist.get_world_size(group)), None


def start_compression(parts: Sequence[Part], recipe: Recipe, mesh: Mesh) -> tuple[CompressionThread, Compression]:
    """Start the thread that averages compressed gradients over the replicas, and return it with the compression."""
    from trainer.compression.background import CompressionThread
    from trainer.compression.compression import Compression

    # The engine has collectives of its own, such as comparisons of ranks, while the thread compresses.
    compression = Compression(recipe.communication, mesh.open_group("replicate"), parts, mesh.device)
    return CompressionThread(compression, mesh.device), compression


def choose_compressed_average(parts: Sequence[Part], recipe: Recipe, mesh: Mesh) -> tuple[StartParts, Compression]:
    """Return how the values of a shard are averaged in compressed form over the replicas, and the compression.

    A thread does it while the backward pass continues. On a GPU the calling thread does, as with torch's engine: its
    collectives over shards and those of another thread would use two communicators of NCCL in an order that differs
    between ranks, and might wait for each other.
    """
    if mesh.device.type != "cuda":
        thread, compression = start_compression(parts, recipe, mesh)
        return thread.start, compression
    from trainer.compression.compression import Compression

    compression = Compression(recipe.communication, mesh.group("replicate"), parts, mesh.device)
    return partial(_average_at_once, compression), compression


def _average_at_once(compression: Compression, values: torch.Tensor, parts: Sequence[Part]) -> Wait:
    compression.average(values, parts)
    return _do_nothing


def start_average(values: torch.Tensor, group: Any, sent_dtype: torch.dtype) -> Wait:
    """Start to replace values by their average over the ranks of a group; return the function that waits for it.

    Each rank divides its own values before the sum, as torch's DDP does: a sum of many ranks could overflow. The
    backend decides the order of the sum. It depends on the ranks and on the position of a value, not on time, and the
    result has the same bits on all ranks. In a short format, values are rounded before and after the sum.

    On a GPU, the returned function makes the current stream wait, not the host.
    """
    if group is None:
        return _do_nothing
    sent = values.to(sent_dtype)
    sent.div_(dist.get_world_size(group))
    wait = start_sum(sent, group)

    def finish() -> None:
        wait()
        if sent is not values:
            values.copy_(sent)

    return finish


def start_sum(values: torch.Tensor, group: Any) -> Wait:
    """Start to replace values by their sum over the ranks of a group; return the function that waits for it."""
    return _wait_with_names(dist.all_reduce(values, group=group, async_op=True).wait, group)


def _wait_with_names(wait: Wait, group: Any) -> Wait:
    """Return a function that waits, and adds to an error which ranks the average needed."""

    def finish() -> None:
        with name_peers(group, "average of gradients"):
            wait()

    return finish


def _do_nothing() -> None:
    pass
