"""Parameters, gradients and optimizer state in pieces over the shard axis: torch's fully_shard, ZeRO 1 to 3, HSDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import nn

from trainer.config.schema import CompileConfig, ParallelConfig, Precision
from trainer.parallel.blocks import blocks, is_tied
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.weights import materialise
from trainer.precision import DTYPES, autocast_forward

Deferred = Literal["nothing", "replicas", "all"]


class FsdpEngine(PlainEngine):
    def __init__(
        self, model: nn.Module, parallel: ParallelConfig, mesh: Mesh, compiled: CompileConfig, choices: list[str]
    ) -> None:
        super().__init__(model, mesh, compiled, choices)
        self._keeps_gathered = keeps_gathered(parallel)
        self._deferred = deferred(parallel, mesh, choices)

    def between(self, index: int, count: int) -> AbstractContextManager[None]:
        return self._flags(is_last=index == count - 1)

    @contextmanager
    def _flags(self, *, is_last: bool) -> Iterator[None]:
        model: Any = self.modules[0]
        model.set_is_last_backward(is_last)
        if self._keeps_gathered:
            model.set_reshard_after_backward(is_last)
        if self._deferred == "all":
            model.set_requires_gradient_sync(is_last)
        elif self._deferred == "replicas":
            model.set_requires_all_reduce(is_last)
        yield


def keeps_gathered(parallel: ParallelConfig) -> bool:
    """ZeRO 1 and 2 keep whole parameters from the first micro-batch of a step to the last."""
    return parallel.zero < 3 or parallel.strategy in ("single", "ddp")  # noqa: PLR2004


def deferred(parallel: ParallelConfig, mesh: Mesh, choices: list[str]) -> Deferred:
    """What waits for the last micro-batch. `auto` defers what needs no memory that the strategy lacks."""
    holds_whole_gradients = parallel.zero == 1 or parallel.strategy in ("single", "ddp")
    if parallel.accumulate == "sync":
        return "nothing"
    if parallel.accumulate == "defer" or holds_whole_gradients:
        if parallel.accumulate == "auto":
            choices.append("accumulate: defer, as whole gradients are held anyway")
        return "all"
    if mesh.layout.replicate > 1:
        choices.append("accumulate: gradients are sharded after every micro-batch, replicas are summed once at the end")
        return "replicas"
    choices.append("accumulate: sync, as whole gradients would not stay sharded")
    return "nothing"


def shard(model: nn.Module, parallel: ParallelConfig, precision: Precision, mesh: Mesh) -> None:
    """Shard the model in place, part by part: only one part at a time is ever whole in memory."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    options = {"mesh": mesh.submesh("replicate", "shard"), **_policies(model, parallel, precision, mesh.device)}
    reshard = not keeps_gathered(parallel)
    for group in _groups(model):
        for module in group:
            materialise(module, mesh.device)
        fully_shard(group, reshard_after_forward=reshard, **options)
    materialise(model, mesh.device)
    # Backward begins where forward ended: what the root itself holds stays.
    fully_shard(model, reshard_after_forward=False, **options)
    _prefetch([group[0] for group in _groups(model)], parallel.prefetch)


def _groups(model: nn.Module) -> list[list[nn.Module]]:
    """Parts gathered together, in order of use. Tied weights must be in one group: they stay with the root."""
    found = [[block] for block in blocks(model)]
    embed, norm, head = (getattr(model, name, None) for name in ("embed", "norm", "head"))
    if is_tied(model):
        return found
    first = [[embed]] if embed is not None else []
    last = [part for part in (norm, head) if part is not None and [part] not in found]
    return [*first, *found, *([last] if last else [])]


def _policies(model: nn.Module, parallel: ParallelConfig, precision: Precision, device: torch.device) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy  # noqa: PLC0415

    found: dict[str, Any] = {}
    if parallel.offload:
        found["offload_policy"] = CPUOffloadPolicy()
    if precision == "fp32":
        return found
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        # Batch statistics are fp32 and their kernels want weights to match, so here only products are cast.
        autocast_forward(model, precision, device)
    else:
        found["mp_policy"] = MixedPrecisionPolicy(param_dtype=DTYPES[precision], reduce_dtype=torch.float32)
    return found


def _prefetch(parts: list[Any], ahead: int) -> None:
    if not ahead:
        return
    for index, part in enumerate(parts):
        part.set_modules_to_forward_prefetch(parts[index + 1 : index + 1 + ahead])
        part.set_modules_to_backward_prefetch(parts[max(0, index - ahead) : index][::-1])
