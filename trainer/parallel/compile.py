"""Prepare a model for the compiler, and compile each unit of it on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.models.experts import MixtureOfExperts
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units


def compile_units(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Compile the forward of each unit: the hooks that fully_shard adds around it stay outside of the graph."""
    if recipe.compiled.mode != "none":
        _exclude_experts(model)
    if recipe.compiles_blocks(mesh.layout):
        for unit in units.layers:
            unit.module.forward = torch.compile(unit.module.forward, backend=recipe.compiled.backend)


def _exclude_experts(model: nn.Module) -> None:
    """Leave mixtures of experts out of the graphs: the sizes of their parts differ from step to step."""
    for part in model.modules():
        if isinstance(part, MixtureOfExperts):
            mixture: Any = part
            mixture.forward = torch.compiler.disable(part.forward)
