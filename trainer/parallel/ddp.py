"""Data parallelism: every rank holds the whole model; torch's DDP averages gradients in buckets during backward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.models.head import Objective, takes_objective
from trainer.parallel.engine import Batch, LossFunction, Recipe, find_objective, run_objective
from trainer.parallel.experts import list_copied_weights
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import named_parameters
from trainer.parallel.plain import PlainEngine
from trainer.parallel.units import Units, list_names

if TYPE_CHECKING:
    from trainer.compression.compression import Compression
    from trainer.compression.ddp_hook import CompressionHook
    from trainer.parallel.pattern_hook import PatternHook

# Start-up: torch's modules for compressed gradients are imported only by runs that compress them.
# ruff: noqa: PLC0415

# broadcast_buffers was renamed after torch 2.11.
_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"


class DdpEngine(PlainEngine):
    """The engine in which every rank runs its share of the batch and gradients are averaged over the replicate axis."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        compression, hook = _make_compression(model, recipe, mesh)
        wrapped, pattern_hook = wrap(_ModelWithLoss(model, recipe), recipe, mesh, hook)
        super().__init__(wrapped, units, recipe, mesh, choices)
        self.compression = compression
        self._hooks = [background for background in (hook, pattern_hook) if background is not None]
        self.takes_objective = takes_objective(model)
        if pattern_hook is not None:
            choices += pattern_hook.choices
        self._is_deferred = recipe.parallel.accumulate != "sync"
        if recipe.parallel.accumulate == "auto":
            choices.append(
                "accumulate: gradients are averaged after the last micro-batch, as ddp stores all of them anyway"
            )

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        loss = super().forward_backward(batch, loss_fn, micro, scale)
        for hook in self._hooks:
            hook.raise_error()
        if not self._recipe.parallel.find_unused_parameters:
            self._check_gradients()
        return loss

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        return model.no_sync() if self._is_deferred and index < count - 1 else nullcontext()

    def _check_gradients(self) -> None:
        """Raise ConfigError if a weight has no gradient: DDP waits for it, so its whole bucket was not averaged."""
        unused = [name for name, value in self.named_parameters() if value.requires_grad and value.grad is None]
        if unused:
            message = f"the loss does not depend on {list_names(unused)}, so ddp cannot average their gradients"
            fix = "freeze them with requires_grad_(False), set parallel.find_unused_parameters to true, or use fsdp"
            raise ConfigError([ConfigProblem("model", message, fix)])

    def _make_loss(self, loss_fn: LossFunction) -> Callable[[Batch], torch.Tensor]:
        model: Any = self.modules[0]
        objective = find_objective(model.module.module, loss_fn)
        return lambda batch: model(batch, loss_fn, objective)


class _ModelWithLoss(nn.Module):
    """The computation from a micro-batch to its loss, inside of DDP; a single graph if the whole model is compiled.

    If it is compiled inside of DDP's forward, torch splits the graph where a bucket is full, so that gradients are sent
    while the backward pass continues. If DDP were compiled from outside, the compiler would leave out the loss and
    trace DDP itself.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.module = model
        if recipe.compiled.mode == "whole":
            whole: Any = self
            whole.forward = torch.compile(self.forward, backend=recipe.compiled.backend)

    def forward(self, batch: Batch, loss_fn: LossFunction, objective: Objective | None) -> torch.Tensor:
        return run_objective(self.module, batch, loss_fn, objective)


def _make_compression(
    model: nn.Module, recipe: Recipe, mesh: Mesh
) -> tuple[Compression | None, CompressionHook | None]:
    """Return the compression of gradients and the hook that calls it, if gradients are compressed."""
    if not recipe.compresses(mesh):
        return None, None
    from trainer.compression.compression import Compression, Part
    from trainer.compression.ddp_hook import CompressionHook

    trained = {value: name for name, value in named_parameters([model]).items() if value.requires_grad}
    parts = [Part(name, tuple(value.shape)) for value, name in trained.items()]
    # DDP has collectives of its own, such as for unused parameters, while a thread compresses buckets.
    compression = Compression(recipe.communication, mesh.open_group("replicate"), parts, mesh.device)
    return compression, CompressionHook(compression, trained, mesh.device)


def wrap(
    model: nn.Module, recipe: Recipe, mesh: Mesh, hook: CompressionHook | None = None
) -> tuple[nn.Module, PatternHook | None]:
    """Wrap the model in DDP; all ranks already hold the same weights, so nothing is broadcast.

    `hook` averages the buckets, instead of an all-reduce. With `communication.pattern`, the hook that is returned does.
    """
    copied = list_copied_weights(model)
    ignored = [name for name, value in model.named_parameters() if value in copied]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    options = {
        "device_ids": [mesh.device.index] if mesh.device.type == "cuda" else None,
        "process_group": mesh.group("replicate"),
        "bucket_cap_mb": recipe.parallel.bucket_mb,
        "gradient_as_bucket_view": recipe.parallel.bucket_view,
        "static_graph": recipe.parallel.static_graph,
        "find_unused_parameters": recipe.parallel.find_unused_parameters,
        "init_sync": False,
        _BUFFER_OPTION: False,
    }
    if recipe.compiled.mode != "none" or "torch._dynamo" in sys.modules:
        wrapped = DistributedDataParallel(model, **options)
    else:
        wrapped = _wrap_without_dynamo(model, options)
    formats = recipe.formats
    if formats.reduced == "bf16" and formats.gradients == "fp32":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        wrapped.register_comm_hook(mesh.group("replicate"), bf16_compress_hook)
    elif formats.reduced == "fp32" and formats.gradients == "bf16":
        wrapped.register_comm_hook(mesh.group("replicate"), average_in_fp32)
    if hook is not None:
        wrapped.register_comm_hook(None, hook.average)
    pattern_hook = _make_pattern_hook(recipe, mesh)
    if pattern_hook is not None:
        wrapped.register_comm_hook(None, pattern_hook.average)
    _build_final_buckets(wrapped)
    return wrapped, pattern_hook


def _make_pattern_hook(recipe: Recipe, mesh: Mesh) -> PatternHook | None:
    group = mesh.group("replicate")
    if recipe.communication.pattern == "backend" or group is None:
        return None
    from trainer.parallel.pattern_hook import make_pattern_hook

    return make_pattern_hook(recipe.communication.pattern, group, mesh)


def average_in_fp32(group, bucket):  # type: ignore[no-untyped-def] # DDP refuses any annotation of its own type as text
    """Average a bucket of bf16 gradients over the ranks in fp32, as a hook of DDP."""
    gradients = bucket.buffer()
    total = gradients.float().div_(dist.get_world_size(group))
    reduced = dist.all_reduce(total, group=group, async_op=True).get_future()
    return reduced.then(lambda done: gradients.copy_(done.value()[0]))


def _build_final_buckets(wrapped: Any) -> None:
    """Let DDP build its final buckets before the first step, by a backward pass that only touches every parameter.

    DDP starts with a single bucket and builds the final ones after its first backward pass, in the order in which
    gradients became ready. This changes the order in which elements are summed over the ranks. Without this function,
    the first step after a resume would differ in the last bit from the same step of an uninterrupted run, and its
    communication would not overlap with compute.
    """
    model = wrapped.module
    copied = list_copied_weights(model)
    parameters = [value for value in model.parameters() if value.requires_grad and value not in copied]
    forward = model.forward
    # Gradients become ready in the reverse order of use, like those of a real model.
    model.forward = lambda _: torch.stack([parameter.flatten()[0].float() for parameter in parameters]).sum()
    try:
        # With a static graph, DDP only counts uses in the first pass.
        for _ in range(2 if wrapped.static_graph else 1):
            # The argument is needed because DDP moves its arguments to the GPU and fails if there are none.
            wrapped(None).backward()
    finally:
        model.forward = forward
    wrapped.reducer._rebuild_buckets()
    for parameter in parameters:
        parameter.grad = None


class _UncompiledDdp(DistributedDataParallel):
    """DDP without the call in forward that informs the compiler, which would import the compiler."""

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


def _wrap_without_dynamo(model: nn.Module, options: dict[str, Any]) -> nn.Module:
    """Wrap the model without importing torch._dynamo, from which DDP reads its mode.

    That import takes as long as importing torch, and nothing is compiled here.
    """
    stand_in = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))
    setattr(torch, "_dynamo", stand_in)  # noqa: B010
    try:
        return _UncompiledDdp(model, **options)
    finally:
        del torch._dynamo
