"""From a model and a layout to the engine that trains it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.parallel.blocks import blocks
from trainer.parallel.engine import Engine
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.recipe import Recipe
from trainer.parallel.recompute import recompute
from trainer.parallel.weights import Factory, Fill, describe, initialise, materialise
from trainer.precision import autocast_forward


def parallelize(model: nn.Module | Factory, recipe: Recipe, mesh: Mesh, fill: Fill | None = None) -> Engine:
    """Spread a model over the ranks of the mesh.

    A factory together with `fill` is built without memory and filled part by part, so the model need not fit on one
    device; otherwise the model's own values count, rank 0's for everybody.
    """
    _refuse_offload(recipe, mesh.device)
    described = describe(model, mesh.device, fill)
    _refuse_split(described, mesh)
    choices: list[str] = []
    if recipe.compiled.mode == "whole" and recipe.compiles_blocks(mesh.layout):
        choices.append("compile: blocks, as engines work between them")
    if mesh.layout.pipeline > 1:
        return _pipeline(described, recipe, mesh, choices, fill)
    if recipe.is_sharded(mesh.layout):
        from trainer.parallel.fsdp import FsdpEngine  # noqa: PLC0415

        return FsdpEngine(_spread(described, recipe, mesh, fill), recipe, mesh, choices)
    whole = _spread(described, recipe, mesh, fill)
    if mesh.layout.replicate == 1:
        return PlainEngine(whole, recipe, mesh, choices)
    from trainer.parallel.ddp import DdpEngine  # noqa: PLC0415

    return DdpEngine(whole, recipe, mesh, choices)


def _refuse_offload(recipe: Recipe, device: torch.device) -> None:
    if recipe.parallel.offload and device.type != "cuda":
        message = f"true, but the device is {device.type}: parameters are in host memory already"
        fix = "set parallel.offload to false, or run.device to cuda"
        raise ConfigError([ConfigProblem("parallel.offload", message, fix)])


def _refuse_split(model: nn.Module, mesh: Mesh) -> None:
    """Both axes go by the names that our decoders give their parts."""
    parts = ("embed", "layers", "norm", "head")
    missing = [name for name in parts if not isinstance(getattr(model, name, None), nn.Module)]
    for axis in ("pipeline", "tensor"):
        if getattr(mesh.layout, axis) > 1 and missing:
            message = f"{getattr(mesh.layout, axis)}, but {type(model).__name__} has no {', '.join(missing)} to split"
            fix = f"set it to 1, or give the model modules named {', '.join(parts)}"
            raise ConfigError([ConfigProblem(f"parallel.{axis}", message, fix)])


def _pipeline(model: Any, recipe: Recipe, mesh: Mesh, choices: list[str], fill: Fill | None) -> Engine:
    from trainer.parallel.pipeline import PipelineEngine, Widths, send_contiguous  # noqa: PLC0415
    from trainer.parallel.stages import cut, indices_of, stage_count  # noqa: PLC0415

    widths = Widths(model.embed.embedding_dim, model.head.out_features)
    indices = indices_of(recipe.parallel, mesh.coordinate("pipeline"))
    parts = [cut(model, index, stage_count(recipe.parallel)) for index in indices]
    stages = [send_contiguous(_spread(part, recipe, mesh, fill)) for part in parts]
    if mesh.layout.replicate > 1 and not recipe.is_sharded(mesh.layout):
        from trainer.parallel.ddp import wrap  # noqa: PLC0415

        stages = [wrap(stage, recipe, mesh) for stage in stages]
    return PipelineEngine(stages, widths, recipe, mesh, choices)


def _spread(model: nn.Module, recipe: Recipe, mesh: Mesh, fill: Fill | None) -> nn.Module:
    """A model, or a stage of one, with its weights where they belong."""
    if mesh.layout.tensor > 1:
        from trainer.parallel.tensor import split  # noqa: PLC0415

        split(model, mesh)
    recompute(model, recipe.parallel.recompute)
    if recipe.compiles_blocks(mesh.layout):
        for block in blocks(model):
            # Only the forward: what fully_shard hooks around it stays outside of the graph.
            block.forward = torch.compile(block.forward, backend=recipe.compiled.backend)
    if recipe.is_sharded(mesh.layout):
        from trainer.parallel.fsdp import shard  # noqa: PLC0415

        shard(model, recipe, mesh)
    else:
        materialise(model, mesh.device)
        autocast_forward(model, recipe.precision, mesh.device)
    if fill is not None:
        initialise([model], mesh.device, fill)
    return model
