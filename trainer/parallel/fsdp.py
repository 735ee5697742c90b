"""Parameters, gradients and optimizer state in pieces over the shard axis: torch's fully_shard, ZeRO 1 to 3, HSDP."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from trainer.config.schema import ParallelConfig
from trainer.parallel.blocks import blocks, is_tied
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.recipe import Recipe
from trainer.parallel.weights import materialise
from trainer.precision import DTYPES, autocast_forward

Deferred = Literal["nothing", "replicas", "all"]

_SHARDS_PARAMETERS = 3
_SHARDS_GRADIENTS = 2


class FsdpEngine(PlainEngine):
    def __init__(self, model: nn.Module, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, recipe, mesh, choices)
        self._keeps_gathered = _zero(recipe.parallel) < _SHARDS_PARAMETERS
        self._deferred, why = deferred(recipe.parallel, mesh.layout.replicate)
        if why:
            choices.append(f"accumulate: {why}")

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        is_last = index == count - 1
        model.set_is_last_backward(is_last)
        if self._keeps_gathered:
            model.set_reshard_after_backward(is_last)
        if self._deferred == "all":
            model.set_requires_gradient_sync(is_last)
        elif self._deferred == "replicas":
            model.set_requires_all_reduce(is_last)
        return nullcontext()


def deferred(parallel: ParallelConfig, replicas: int) -> tuple[Deferred, str]:
    """What waits for the last micro-batch, and why where that was left to us.

    `auto` defers what needs no memory that the strategy does not use anyway.
    """
    if parallel.accumulate == "sync":
        return "nothing", ""
    if parallel.accumulate == "defer":
        return "all", ""
    if _zero(parallel) < _SHARDS_GRADIENTS:
        return "all", "gradients are reduced after the last micro-batch, they are held whole anyway"
    if replicas > 1:
        return "replicas", "gradients are scattered after each micro-batch, replicas are summed after the last"
    return "nothing", "gradients are scattered after each micro-batch, to hold only a part of them"


def shard(model: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
    """Shard the model in place, part by part: only one part at a time is ever whole in memory."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    # Tensor parallel layers hand out views; nothing in our models writes into them.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    options = {"mesh": mesh.submesh("replicate", "shard"), **_policies(model, recipe, mesh.device)}
    # In a pipeline every micro-batch would gather the weights again. The price is a stage's weights, whole for a step,
    # beside its gradients, which torch's stages keep whole anyway.
    reshard = _zero(recipe.parallel) == _SHARDS_PARAMETERS and recipe.parallel.pipeline == 1
    groups = _groups(model)
    for group in groups:
        for part in group:
            materialise(part, mesh.device)
        fully_shard(group, reshard_after_forward=reshard, **options)
    materialise(model, mesh.device)
    # What the root itself holds is needed at the end of forward and at once again in backward.
    fully_shard(model, reshard_after_forward=False, **options)
    _prefetch([group[0] for group in groups], recipe.parallel.prefetch)


def _zero(parallel: ParallelConfig) -> int:
    """Without a shard axis everything is whole on every rank: what stage 1 does, with nothing to shard."""
    return parallel.zero if parallel.strategy in ("fsdp", "hsdp") else 1


def _groups(model: nn.Module) -> list[list[nn.Module]]:
    """Parts gathered together, in order of use. Tied weights must be in one group: they stay with the root."""
    found = [[block] for block in blocks(model)]
    if is_tied(model):
        return found
    known = {id(block) for group in found for block in group}
    ends = {name: getattr(model, name, None) for name in ("embed", "positions", "norm", "head")}
    parts = {name: part for name, part in ends.items() if isinstance(part, nn.Module) and id(part) not in known}
    first = [parts[name] for name in ("embed", "positions") if name in parts]
    last = [parts[name] for name in ("norm", "head") if name in parts]
    return [group for group in (first, *found, last) if group]


def _policies(model: nn.Module, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy  # noqa: PLC0415

    found: dict[str, Any] = {}
    if recipe.parallel.offload:
        found["offload_policy"] = CPUOffloadPolicy()
    if recipe.precision == "fp32":
        return found
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        # Batch statistics are fp32 and their kernels want weights of the same kind: only products are cast.
        autocast_forward(model, recipe.precision, device)
    else:
        found["mp_policy"] = MixedPrecisionPolicy(param_dtype=DTYPES[recipe.precision], reduce_dtype=torch.float32)
    return found


def _prefetch(parts: list[Any], ahead: int) -> None:
    """Gather the next parts while one is computed.

    Left to itself, backward gathers the part that ran before this one, which for the first part is the last part of
    the micro-batch before. A part that prefetches itself prefetches nothing.
    """
    for index, part in enumerate(parts):
        part.set_modules_to_forward_prefetch(parts[index + 1 : index + 1 + ahead])
        part.set_modules_to_backward_prefetch(parts[max(0, index - ahead) : index][::-1] or [part])
