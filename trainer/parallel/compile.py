"""Compile each unit of a model on its own."""

from __future__ import annotations

import torch
from torch import nn

from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units


def compile_units(_model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Compile the forward of each unit: the hooks that fully_shard adds around it stay outside of the graph."""
    if recipe.compiles_blocks(mesh.layout):
        for unit in units.layers:
            unit.module.forward = torch.compile(unit.module.forward, backend=recipe.compiled.backend)
