"""Shard the weights with torch's code or with ours."""

from __future__ import annotations

from torch import nn

from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.shard import shard_units
from trainer.parallel.units import Units


def shard_weights(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Shard the model in place with the code of the engine, if the strategy shards."""
    if recipe.parallel.engine == "muster" and recipe.uses_fully_shard(mesh.layout):
        from trainer.engines.sharded import shard_blocks  # noqa: PLC0415 - only for runs that use it

        shard_blocks(model, units, recipe, mesh)
    else:
        shard_units(model, units, recipe, mesh)
