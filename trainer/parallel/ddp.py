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

from trainer.config.schema import CompileConfig, ParallelConfig
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine

# broadcast_buffers was given a new name after torch 2.11.
_NAMES = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"


class DdpEngine(PlainEngine):
    def __init__(
        self, model: nn.Module, parallel: ParallelConfig, mesh: Mesh, compiled: CompileConfig, choices: list[str]
    ) -> None:
        self._defer = parallel.accumulate != "sync"
        if parallel.accumulate == "auto":
            choices.append("accumulate: defer, as ddp holds whole gradients anyway")
        wrapped = wrap(model, parallel, mesh, is_compiled=compiled.mode != "none")
        super().__init__(wrapped, mesh, compiled, choices)

    def between(self, index: int, count: int) -> AbstractContextManager[None]:
        is_last = index == count - 1
        return self.modules[0].no_sync() if self._defer and not is_last else nullcontext()


def wrap(model: nn.Module, parallel: ParallelConfig, mesh: Mesh, *, is_compiled: bool) -> nn.Module:
    """The model in DDP. All ranks hold the same weights already, so nothing is sent here."""
    options = {
        "device_ids": [mesh.device.index] if mesh.device.type == "cuda" else None,
        "process_group": mesh.group("replicate"),
        "bucket_cap_mb": parallel.bucket_mb,
        "gradient_as_bucket_view": parallel.bucket_view,
        "static_graph": parallel.static_graph,
        "init_sync": False,
        _BUFFER_OPTION: False,
    }
    if is_compiled or "torch._dynamo" in sys.modules:
        return DistributedDataParallel(model, **options)
    return _without_dynamo(model, options)


class _LightDdp(DistributedDataParallel):
    """DDP whose forward does not announce itself to the compiler."""

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def _without_dynamo(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    """DDP asks torch._dynamo for its mode, whose import takes as long as torch's own; nothing is compiled here."""
    torch._dynamo = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    try:
        return _LightDdp(model, **options)
    finally:
        del torch._dynamo
