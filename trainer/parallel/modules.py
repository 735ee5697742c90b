"""List the parameters and buffers of a model under the model's own names."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem

_WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}


def is_tied(model: nn.Module) -> bool:
    """Return whether the model uses a weight in several places."""
    names = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    return names > sum(1 for _ in model.parameters())


def strip_wrappers(name: str) -> str:
    """Return the model's own name of a parameter, without the prefixes of DDP, compile and checkpoint wrappers."""
    parts = name.split(".")
    while parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(part for part in parts if part == "module" or part not in _WRAPPERS)


def named_parameters(modules: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of several modules under the model's own names."""
    named: dict[str, nn.Parameter] = {}
    for module in modules:
        for name, value in module.named_parameters():
            own_name = strip_wrappers(name)
            if own_name in named:
                message = f"two weights would be called {own_name} in a checkpoint"
                fix = "rename the part that is called module or _orig_mod"
                raise ConfigError([ConfigProblem("model", message, fix)])
            named[own_name] = value
    return named


def list_embeddings(modules: Iterable[nn.Module]) -> set[str]:
    """Return the model's own names of the weights of lookup tables, under each of their names if they are tied."""
    names = set()
    for module in modules:
        tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
        named = module.named_parameters(remove_duplicate=False)
        names |= {strip_wrappers(name) for name, value in named if id(value) in tables}
    return names


def named_persistent_buffers(modules: Iterable[nn.Module]) -> dict[str, torch.Tensor]:
    """Return the buffers that belong in a checkpoint, under the model's own names.

    Tables that the model computes itself are registered with persistent=False and left out.
    """
    buffers = {}
    for module in modules:
        for prefix, part in module.named_modules():
            for name, value in part.named_buffers(recurse=False):
                if name not in part._non_persistent_buffers_set:
                    buffers[strip_wrappers(f"{prefix}.{name}" if prefix else name)] = value
    return buffers
