"""Data parallelism: every rank holds the whole model; torch's DDP averages gradients in buckets during backward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.parallel.engine import Batch, LossFunction, Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine

# broadcast_buffers has another name after torch 2.11.
_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"


class DdpEngine(PlainEngine):
    """Every rank runs its share of the batch; gradients are averaged over the replicate axis."""

    def __init__(self, model: nn.Module, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(wrap(_ModelWithLoss(model, recipe), recipe, mesh), recipe, mesh, choices)
        self._is_deferred = recipe.parallel.accumulate != "sync"
        if recipe.parallel.accumulate == "auto":
            choices.append(
                "accumulate: gradients are averaged after the last micro-batch, as ddp stores all of them anyway"
            )

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        return model.no_sync() if self._is_deferred and index < count - 1 else nullcontext()

    def _make_loss(self, loss_fn: LossFunction) -> Callable[[Batch], torch.Tensor]:
        model = self.modules[0]
        return lambda batch: model(batch, loss_fn)


class _ModelWithLoss(nn.Module):
    """The computation from a micro-batch to its loss, inside of DDP; one graph if the whole model is compiled.

    If compiled from inside of DDP's forward, torch cuts the graph where a bucket is full, so that its gradients are
    sent during the remaining backward pass. Around DDP, the compiler would leave the loss out and trace DDP itself.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.module = model
        if recipe.compiled.mode == "whole":
            whole: Any = self
            whole.forward = torch.compile(self.forward, backend=recipe.compiled.backend)

    def forward(self, batch: Batch, loss_fn: LossFunction) -> torch.Tensor:
        return loss_fn(self.module(batch["inputs"]), batch["targets"])


def wrap(model: nn.Module, recipe: Recipe, mesh: Mesh) -> nn.Module:
    """Wrap the model in DDP; all ranks hold the same weights already, so nothing is sent here."""
    options = {
        "device_ids": [mesh.device.index] if mesh.device.type == "cuda" else None,
        "process_group": mesh.group("replicate"),
        "bucket_cap_mb": recipe.parallel.bucket_mb,
        "gradient_as_bucket_view": recipe.parallel.bucket_view,
        "static_graph": recipe.parallel.static_graph,
        "init_sync": False,
        _BUFFER_OPTION: False,
    }
    if recipe.compiled.mode != "none" or "torch._dynamo" in sys.modules:
        wrapped = DistributedDataParallel(model, **options)
    else:
        wrapped = _wrap_without_dynamo(model, options)
    _build_final_buckets(wrapped)
    return wrapped


def _build_final_buckets(wrapped: Any) -> None:
    """Let DDP build its final buckets before the first step, by a backward pass that only touches every parameter.

    DDP begins with one bucket for everything and builds the final ones after its first backward, in the order in which
    gradients were ready. Elements then change their place in a bucket and are summed over the ranks in another order,
    so the first step after a resume would differ in the last bit from the same step of an uninterrupted run, and would
    not overlap its traffic with the computation.
    """
    model = wrapped.module
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward = model.forward
    # Gradients are ready in the reverse order of use, as those of a real model are.
    model.forward = lambda _: torch.stack([parameter.flatten()[0].float() for parameter in parameters]).sum()
    try:
        # The first pass of a static graph only counts.
        for _ in range(2 if wrapped.static_graph else 1):
            # On a GPU, DDP moves its arguments there and fails without any.
            wrapped(None).backward()
    finally:
        model.forward = forward
    wrapped.reducer._rebuild_buckets()
    for parameter in parameters:
        parameter.grad = None


class _UncompiledDdp(DistributedDataParallel):
    """DDP whose forward does not notify the compiler, which would have to be imported for that."""

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def _wrap_without_dynamo(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    """Wrap the model without importing torch._dynamo, which DDP asks for its mode.

    That import takes as long as torch's own, and nothing is compiled here.
    """
    stand_in = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    setattr(torch, "_dynamo", stand_in)  # noqa: B010
    try:
        return _UncompiledDdp(model, **options)
    finally:
        del torch._dynamo
