"""Sharded data parallelism: parameters, gradients and optimizer state split over the shard axis (ZeRO, HSDP)."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from trainer.config.schema import ParallelConfig
from trainer.parallel.engine import Recipe
from trainer.parallel.materialize import materialize
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import is_tied, list_blocks
from trainer.parallel.plain import PlainEngine
from trainer.precision import DTYPES, autocast_forward

DeferredReduction = Literal["nothing", "replicas", "all"]
"""The reductions that are deferred to the last micro-batch: none, the one over replicas, or all of them."""

_ZERO_PARAMETERS = 3
_ZERO_GRADIENTS = 2


class FsdpEngine(PlainEngine):
    """The engine in which every rank runs its share of the batch and gathers the parameters block by block."""

    def __init__(self, model: nn.Module, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, recipe, mesh, choices)
        self._stays_gathered = _zero_stage(recipe.parallel) < _ZERO_PARAMETERS
        self._deferred, reason = choose_deferred_reduction(recipe.parallel, mesh.layout.replicate)
        if reason:
            choices.append(f"accumulate: {reason}")

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        is_last = index == count - 1
        model.set_is_last_backward(is_last)
        if self._stays_gathered:
            model.set_reshard_after_backward(is_last)
        if self._deferred == "all":
            model.set_requires_gradient_sync(is_last)
        elif self._deferred == "replicas":
            model.set_requires_all_reduce(is_last)
        return nullcontext()


def choose_deferred_reduction(parallel: ParallelConfig, replicas: int) -> tuple[DeferredReduction, str]:
    """Return which reductions are deferred to the last micro-batch and, for `auto`, the reason.

    `auto` defers the reductions that need no additional memory.
    """
    if parallel.accumulate == "sync":
        return "nothing", ""
    if parallel.accumulate == "defer":
        return "all", ""
    if _zero_stage(parallel) < _ZERO_GRADIENTS:
        return "all", "gradients are reduced after the last micro-batch, as all of them are stored anyway"
    if replicas > 1:
        return "replicas", "gradients are scattered after each micro-batch, replicas are summed after the last"
    return "nothing", "gradients are scattered after each micro-batch, to store only a part of them"


def shard_model(model: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
    """Shard the model in place, part by part, so that only one part at a time is whole in memory."""
    # torch warns about the views that tensor parallel layers return, but our models never write into them.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    options = {"mesh": mesh.submesh("replicate", "shard"), **_make_policies(model, recipe, mesh.device)}
    # In a pipeline, every micro-batch would gather the weights again. Without resharding, a stage's whole weights stay
    # in memory during a step, as its whole gradients do anyway.
    reshard = _zero_stage(recipe.parallel) == _ZERO_PARAMETERS and recipe.parallel.pipeline == 1
    groups = _group_modules(model)
    for group in groups:
        for part in group:
            materialize(part, mesh.device)
        fully_shard(group, reshard_after_forward=reshard, **options)
    materialize(model, mesh.device)
    # The root's own parameters are used at the end of forward and at the start of backward, so they stay gathered.
    fully_shard(model, reshard_after_forward=False, **options)
    _set_prefetch([group[0] for group in groups], recipe.parallel.prefetch)


def _zero_stage(parallel: ParallelConfig) -> int:
    """Return the ZeRO stage; without a shard axis every rank stores everything, as in stage 1."""
    return parallel.zero if parallel.strategy in ("fsdp", "hsdp") else 1


def _group_modules(model: nn.Module) -> list[list[nn.Module]]:
    """Return the parts that are gathered together, in the order of use; tied weights stay with the root."""
    blocks = [[block] for block in list_blocks(model)]
    if is_tied(model):
        return blocks
    in_blocks = {id(block) for group in blocks for block in group}
    ends = {name: getattr(model, name, None) for name in ("embed", "positions", "norm", "head")}
    parts = {name: part for name, part in ends.items() if isinstance(part, nn.Module) and id(part) not in in_blocks}
    first = [parts[name] for name in ("embed", "positions") if name in parts]
    last = [parts[name] for name in ("norm", "head") if name in parts]
    return [group for group in (first, *blocks, last) if group]


def _make_policies(model: nn.Module, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    policies: dict[str, Any] = {}
    if recipe.parallel.offload:
        policies["offload_policy"] = CPUOffloadPolicy()
    if recipe.precision == "fp32":
        return policies
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        # Batch statistics are fp32, and their kernels need weights of the same type, so only matrix products are cast.
        autocast_forward(model, recipe.precision, device)
    else:
        policies["mp_policy"] = MixedPrecisionPolicy(param_dtype=DTYPES[recipe.precision], reduce_dtype=torch.float32)
    return policies


def _set_prefetch(parts: list[Any], ahead: int) -> None:
    """Gather the next parts while one is computed.

    By default, backward prefetches the part that ran before this one in forward; for the first part, that is the last
    part of the previous micro-batch. To prefetch nothing, the first part is set to prefetch itself.
    """
    for index, part in enumerate(parts):
        part.set_modules_to_forward_prefetch(parts[index + 1 : index + 1 + ahead])
        part.set_modules_to_backward_prefetch(parts[max(0, index - ahead) : index][::-1] or [part])
