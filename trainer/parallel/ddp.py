"""Every rank holds the whole model; torch's DistributedDataParallel averages gradients in buckets during backward."""

from __future__ import annotations

import inspect
import sys
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.recipe import Recipe

# broadcast_buffers got another name after torch 2.11.
_NAMES = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"


class DdpEngine(PlainEngine):
    def __init__(self, model: nn.Module, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(wrap(model, recipe, mesh), recipe, mesh, choices)
        self._defer = recipe.parallel.accumulate != "sync"
        # A static graph is learnt from the first backward, which has to reduce for that. An average that is averaged
        # again with the rest stays right.
        self._must_reduce = recipe.parallel.static_graph
        if recipe.parallel.accumulate == "auto":
            choices.append("accumulate: gradients are averaged after the last micro-batch, ddp holds them whole anyway")

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        waits = self._defer and index < count - 1 and not self._must_reduce
        self._must_reduce = False
        return model.no_sync() if waits else nullcontext()


def wrap(model: nn.Module, recipe: Recipe, mesh: Mesh) -> nn.Module:
    """The model in DDP. All ranks hold the same weights already, so nothing is sent here."""
    options = {
        "device_ids": [mesh.device.index] if mesh.device.type == "cuda" else None,
        "process_group": mesh.group("replicate"),
        "bucket_cap_mb": recipe.parallel.bucket_mb,
        "gradient_as_bucket_view": recipe.parallel.bucket_view,
        "static_graph": recipe.parallel.static_graph,
        "init_sync": False,
        _BUFFER_OPTION: False,
    }
    # Compiled whole, the compiler takes DDP's own class apart; a static graph has one bucket until it is known.
    if recipe.compiled.mode == "whole" or recipe.parallel.static_graph:
        return DistributedDataParallel(model, **options)
    if recipe.compiled.mode == "blocks" or "torch._dynamo" in sys.modules:
        return _FixedBuckets(model, **options)
    return _without_dynamo(model, options)


class _FixedBuckets(DistributedDataParallel):
    """DDP that keeps the buckets it began with.

    DDP makes them anew after the first step. Elements then stand elsewhere in a bucket and are summed over the ranks in
    another order, so the first step after a resume would differ in the last bit from the same step of a straight run.
    """

    reducer: Any

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        reducer = self.reducer
        self.reducer = _Keeping(reducer)
        try:
            return super()._pre_forward(*inputs, **kwargs)
        finally:
            self.reducer = reducer


class _Keeping:
    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class _UncompiledDdp(_FixedBuckets):
    """DDP whose forward does not announce itself to the compiler, which would have to be imported for that."""

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def _without_dynamo(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    """DDP asks torch._dynamo for its mode; that import takes as long as torch's own and nothing is compiled here."""
    stand_in = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    setattr(torch, "_dynamo", stand_in)  # noqa: B010
    try:
        return _UncompiledDdp(model, **options)
    finally:
        del torch._dynamo
