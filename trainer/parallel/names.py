"""Parameters and buffers under the model's own names, whatever wraps the model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}


def clean(name: str) -> str:
    parts = name.split(".")
    while parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(part for part in parts if part == "module" or part not in _WRAPPERS)


def parameters(modules: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    return {clean(name): value for module in modules for name, value in module.named_parameters()}


def persistent_buffers(modules: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """Tables that the model computes itself (registered with persistent=False) are left out."""
    found = {}
    for module in modules:
        for prefix, part in module.named_modules():
            for name, value in part.named_buffers(recurse=False):
                if name not in part._non_persistent_buffers_set:
                    found[clean(f"{prefix}.{name}" if prefix else name)] = value
    return found
