"""From a description of a model to one with memory and values behind it, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

Factory = Callable[[], nn.Module]
Fill = Callable[[Sequence[nn.Module]], None]


def describe(model: nn.Module | Factory, device: torch.device, fill: Fill | None) -> nn.Module:
    """The model without memory where `fill` gives it values later; else with its own values, rank 0's everywhere."""
    if fill is not None and not isinstance(model, nn.Module):
        with torch.device("meta"), _NoFirstValues():
            return model()
    built = model if isinstance(model, nn.Module) else model()
    return _same_everywhere(built.to(device))


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give memory to what has none yet. Unlike with `to_empty`, weights used in two places stay one."""
    made: dict[int, tuple[Any, Any]] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None and value.is_meta:
                if id(value) not in made:
                    memory = torch.empty_like(value, device=device)
                    made[id(value)] = (value, nn.Parameter(memory, requires_grad=value.requires_grad))
                part._parameters[name] = made[id(value)][1]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = torch.empty_like(buffer, device=device)


def initialise(modules: Sequence[nn.Module], device: torch.device, fill: Fill) -> None:
    """Values for what `materialise` gave memory to: our models compute their own tables and statistics."""
    for module in modules:
        model: Any = module
        model.init_buffers(device)
    fill(modules)


class _NoFirstValues(TorchFunctionMode):
    """Layers draw their weights when they are made. Without memory that is for nothing, and it imports the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in (kwargs or {}) else args[0]
        return func(*args, **(kwargs or {}))


def _same_everywhere(model: nn.Module) -> nn.Module:
    if dist.is_initialized() and dist.get_world_size() > 1:
        for value in [*model.parameters(), *model.buffers()]:
            dist.broadcast(value.detach(), src=0)
    return model
