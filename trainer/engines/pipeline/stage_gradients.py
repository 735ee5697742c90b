"""The gradients of a pipeline stage, averaged over the data-parallel ranks that hold the same stage.

A stage adds up the gradients of all micro-batches, and averages them once: its last backward pass is the last
micro-batch of data parallelism. Under ddp, the buckets of `data_parallel` start during that pass. Under fsdp and hsdp,
the blocks of `sharded` are gathered when the first micro-batch runs, stay whole until the end of the step, because
every micro-batch needs them, and are reduced one after the other when the last backward pass has ended. Meanwhile the
other stages of the pipeline continue.
"""

from __future__ import annotations

from typing import Protocol

from torch import nn

from trainer.engines.block_gradients import BlockGradients, Reductions
from trainer.engines.data_parallel import GradientBuckets
from trainer.engines.reduction import start_average
from trainer.engines.sharded import copy_first_replica, find_passes
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.same_model import broadcast_model, check_device
from trainer.precision import DTYPES


class StageGradients(Protocol):
    """What happens around the backward passes of a stage."""

    def begin_step(self) -> None:
        """Prepare the first micro-batch."""

    def begin_backward(self, *, is_last: bool) -> None:
        """Prepare a backward pass; the last one of a step averages."""

    def end_last_backward(self) -> None:
        """Start what is left to be averaged, without waiting for it."""

    def finish(self) -> None:
        """Wait until the gradients are averages."""


def prepare_stage(stage: nn.Module, recipe: Recipe, mesh: Mesh) -> StageGradients:
    """Give all copies of a stage the values of the first one, and return how its gradients are averaged."""
    check_device(stage, mesh.device)
    if recipe.uses_fully_shard(mesh.layout):
        return ShardedStage(stage, recipe, mesh)
    return CopiedStage(stage, recipe, mesh)


class CopiedStage:
    """A stage whose weights are whole on each rank (ddp), or on one rank only (single)."""

    def __init__(self, stage: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
        group, dtype = mesh.group("replicate"), DTYPES[recipe.formats.reduced]
        broadcast_model(stage, group, mesh.device)
        trained = [value for value in stage.parameters() if value.requires_grad] if group is not None else []
        size = recipe.parallel.bucket_mb * 2**20
        self._buckets = GradientBuckets(trained, size, lambda values, _: start_average(values, group, dtype))

    def begin_step(self) -> None:
        pass

    def begin_backward(self, *, is_last: bool) -> None:
        self._buckets.begin(sends=is_last)

    def end_last_backward(self) -> None:
        self._buckets.start_missing()

    def finish(self) -> None:
        self._buckets.finish()


class ShardedStage:
    """A stage whose weights data-parallel ranks share (fsdp, hsdp)."""

    def __init__(self, stage: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
        self._passes = find_passes(stage)
        copy_first_replica(self._passes.blocks, stage, mesh)
        self._gradients = [BlockGradients(block, mesh, DTYPES[recipe.formats.reduced]) for block in self._passes.blocks]
        self._reductions = Reductions()
        self._is_always_compared = recipe.parallel.check_blocks
        self._passes.order.is_compared = True

    def begin_step(self) -> None:
        self._reductions.abandon()
        # Not the last micro-batch, after which blocks would be freed one by one: later ones still need them.
        self._passes.begin(is_first=True, is_last=False)
        for gradients in self._gradients:
            gradients.begin(is_first=True)

    def begin_backward(self, *, is_last: bool) -> None:
        pass

    def end_last_backward(self) -> None:
        for gradients in reversed(self._gradients):
            if gradients.is_waiting:
                self._reductions.start(gradients.reduce(adds_replicas=True))

    def finish(self) -> None:
        self._reductions.finish()
        self._passes.order.is_compared = self._is_always_compared
        for block in self._passes.blocks:
            block.free()
