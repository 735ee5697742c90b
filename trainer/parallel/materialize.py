"""Allocate and initialise a model that was built without memory, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.same_model import broadcast_model
from trainer.parallel.units import Units
from trainer.precision import DTYPES, cast_weights, store_as_fp32

Factory = Callable[[], nn.Module]
Fill = Callable[[Sequence[nn.Module]], None]


def build_model(
    model: nn.Module | Factory, device: torch.device, fill: Fill | None, choices: list[str], recipe: Recipe
) -> nn.Module:
    """Build the model, without memory if `fill` sets its values later, otherwise with rank 0's values on all ranks."""
    stored = recipe.formats.weights
    if fill is not None and not isinstance(model, nn.Module):
        with torch.device("meta"), _SkipInit():
            built = model()
        cast_weights(built, stored)
        return built
    built = model if isinstance(model, nn.Module) else model()
    lines = store_as_fp32(built)
    # The log names the format only if it is not the one of the settings.
    choices += lines if stored == "fp32" else []
    cast_weights(built, stored)
    built = built.to(device)
    if dist.is_initialized():
        broadcast_model(built, dist.group.WORLD, device)
    return built


def allocate_weights(model: nn.Module, _units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Allocate the weights that no earlier pass has allocated."""
    materialize(model, mesh.device)
    set_gradient_format(model, recipe)


def set_gradient_format(module: nn.Module, recipe: Recipe) -> None:
    """Let torch store gradients in the format of the recipe, if it is not that of the weights."""
    formats = recipe.formats
    if formats.gradients == formats.weights:
        return
    for weight in module.parameters():
        if weight.requires_grad:
            weight.grad_dtype = DTYPES[formats.gradients]


def materialize(module: nn.Module, device: torch.device) -> None:
    """Allocate tensors that have no memory yet; unlike with `to_empty`, tied weights stay tied."""
    created: dict[int, tuple[Any, Any]] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None and value.is_meta:
                if id(value) not in created:
                    memory = torch.empty_like(value, device=device)
                    created[id(value)] = (value, nn.Parameter(memory, requires_grad=value.requires_grad))
                part._parameters[name] = created[id(value)][1]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = torch.empty_like(buffer, device=device)


def initialize(module: nn.Module, device: torch.device, fill: Fill) -> None:
    """Set the values of a materialized module: the model computes its buffers, and `fill` sets the weights."""
    model: Any = module
    model.init_buffers(device)
    fill([module])


class _SkipInit(TorchFunctionMode):
    """A mode that skips torch.nn.init, which has no effect on tensors without memory but imports the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in (kwargs or {}) else args[0]
        return func(*args, **(kwargs or {}))
