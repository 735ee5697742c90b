"""Check the compiler's backend, prepare a model for the compiler, and compile each unit of it on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import CompileConfig
from trainer.models.experts import MixtureOfExperts
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units


def check_backend(settings: CompileConfig) -> None:
    """Raise ConfigError if torch.compile is to use a backend that torch does not have."""
    if settings.mode == "none" or settings.backend == CompileConfig().backend:
        return
    from torch._dynamo import list_backends  # noqa: PLC0415 - start-up: importing it takes seconds

    backends = list_backends(exclude_tags=())
    if settings.backend not in backends:
        message = f"{settings.backend!r} is not a backend of torch.compile here"
        raise ConfigError([ConfigProblem("compile.backend", message, f"allowed: {', '.join(backends)}")])


def compile_units(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Compile the forward of each unit: the hooks that fully_shard adds around it stay outside of the graph."""
    if recipe.compiled.mode != "none":
        _exclude_experts(model)
    if recipe.compiles_blocks(mesh.layout):
        for unit in units.layers:
            compiled = torch.compile(unit.module.forward, backend=recipe.compiled.backend)
            unit.module.forward = compiled if mesh.layout.tensor == 1 else _wait_for_input(compiled)


def _wait_for_input(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Give a unit plain tensors only: the compiler drops the gradient of a collective's result that is in flight.

    The input of the first layer is one, the embeddings that tensor parallel ranks have summed.
    """
    # Start-up: only runs that split layers need it.
    from torch.distributed._functional_collectives import AsyncCollectiveTensor  # noqa: PLC0415

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return compiled(x.clone() if isinstance(x, AsyncCollectiveTensor) else x, *args, **kwargs)

    return run


def _exclude_experts(model: nn.Module) -> None:
    """Leave mixtures of experts out of the graphs: the sizes of their parts differ from step to step."""
    for part in model.modules():
        if isinstance(part, MixtureOfExperts):
            mixture: Any = part
            mixture.forward = torch.compiler.disable(part.forward)
