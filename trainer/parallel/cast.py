"""Run a model in the precision of the run, by autocast or by the casts of fully_shard."""

from __future__ import annotations

from torch import nn

from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units
from trainer.precision import autocast_forward


def cast_forward(model: nn.Module, _units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Run the model's forward under autocast, unless fully_shard casts its weights."""
    if not is_cast_by_sharding(model, recipe, mesh):
        autocast_forward(model, recipe.precision, mesh.device)


def is_cast_by_sharding(model: nn.Module, recipe: Recipe, mesh: Mesh) -> bool:
    """Return whether fully_shard gathers weights in the precision of the run.

    Not with batch norm: batch statistics are fp32, and their kernels need weights of the same type.
    """
    if recipe.precision == "fp32" or not recipe.uses_fully_shard(mesh.layout):
        return False
    return not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())
