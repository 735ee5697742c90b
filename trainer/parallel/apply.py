"""Build the engine for a model and a layout, by passes that change the model in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.materialize import Factory, Fill, build_model, initialize, materialize
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import list_blocks
from trainer.parallel.plain import PlainEngine
from trainer.parallel.recompute import recompute
from trainer.precision import autocast_forward

# Start-up: torch's modules for each way of spreading a model take long to import, so a run imports only those it uses.
# ruff: noqa: PLC0415


def parallelize(model: nn.Module | Factory, recipe: Recipe, mesh: Mesh, fill: Fill | None = None) -> Engine:
    """Spread a model over the ranks of the mesh.

    With a factory and `fill`, the model is built without memory and filled part by part, so it need not fit on one
    device. Otherwise the model's own values are used, and all ranks get those of rank 0.
    """
    _check_offload(recipe, mesh.device)
    built = build_model(model, mesh.device, fill)
    _check_names(built, mesh)
    choices: list[str] = []
    if recipe.compiled.mode == "whole" and recipe.compiles_blocks(mesh.layout):
        choices.append("compile: blocks, because the engine works between them")
    if mesh.layout.pipeline > 1:
        return _make_pipeline(built, recipe, mesh, choices, fill)
    _apply_passes(built, recipe, mesh, fill)
    if recipe.is_sharded(mesh.layout):
        from trainer.parallel.fsdp import FsdpEngine

        return FsdpEngine(built, recipe, mesh, choices)
    if mesh.layout.replicate == 1:
        return PlainEngine(built, recipe, mesh, choices)
    from trainer.parallel.ddp import DdpEngine

    return DdpEngine(built, recipe, mesh, choices)


def _check_offload(recipe: Recipe, device: torch.device) -> None:
    if recipe.parallel.offload and device.type != "cuda":
        message = f"true, but the device is {device.type}: parameters are in host memory already"
        fix = "set parallel.offload to false, or run.device to cuda"
        raise ConfigError([ConfigProblem("parallel.offload", message, fix)])


def _check_names(model: nn.Module, mesh: Mesh) -> None:
    """Check that a model to be split has the modules that pipeline and tensor parallelism look up by name."""
    parts = ("embed", "layers", "norm", "head")
    missing = [name for name in parts if not isinstance(getattr(model, name, None), nn.Module)]
    for axis in ("pipeline", "tensor"):
        if getattr(mesh.layout, axis) > 1 and missing:
            message = f"{getattr(mesh.layout, axis)}, but {type(model).__name__} has no {', '.join(missing)} to split"
            fix = f"set it to 1, or give the model modules named {', '.join(parts)}"
            raise ConfigError([ConfigProblem(f"parallel.{axis}", message, fix)])


def _make_pipeline(model: Any, recipe: Recipe, mesh: Mesh, choices: list[str], fill: Fill | None) -> Engine:
    from trainer.parallel.pipeline import PipelineEngine, Widths, cut_stage, list_stages, send_contiguous

    widths = Widths(model.embed.embedding_dim, model.head.out_features)
    stages = [
        cut_stage(model, index, recipe.parallel) for index in list_stages(recipe.parallel, mesh.coordinate("pipeline"))
    ]
    for stage in stages:
        _apply_passes(stage, recipe, mesh, fill)
        send_contiguous(stage)
    if mesh.layout.replicate > 1 and not recipe.is_sharded(mesh.layout):
        from trainer.parallel.ddp import wrap

        stages = [wrap(stage, recipe, mesh) for stage in stages]
    return PipelineEngine(stages, widths, recipe, mesh, choices)


def _apply_passes(model: nn.Module, recipe: Recipe, mesh: Mesh, fill: Fill | None) -> None:
    """Apply all passes to a model or a pipeline stage, in place, and initialise its weights."""
    for change in PASSES:
        change(model, recipe, mesh)
    if fill is not None:
        initialize(model, mesh.device, fill)


def _split_layers(model: nn.Module, _recipe: Recipe, mesh: Mesh) -> None:
    if mesh.layout.tensor > 1:
        from trainer.parallel.tensor import split_layers

        split_layers(model, mesh)


def _recompute_blocks(model: nn.Module, recipe: Recipe, _mesh: Mesh) -> None:
    recompute(model, recipe.parallel.recompute)


def _compile_blocks(model: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
    if recipe.compiles_blocks(mesh.layout):
        for block in list_blocks(model):
            # Only the forward is compiled: the hooks that fully_shard adds around it stay outside of the graph.
            block.forward = torch.compile(block.forward, backend=recipe.compiled.backend)


def _place_weights(model: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
    if recipe.is_sharded(mesh.layout):
        from trainer.parallel.fsdp import shard_model

        shard_model(model, recipe, mesh)
    else:
        materialize(model, mesh.device)
        autocast_forward(model, recipe.precision, mesh.device)


Pass = Callable[[nn.Module, Recipe, Mesh], None]
# Several passes wrap the `forward` of a module, so later passes are outside of earlier ones: compiled graphs contain
# the recomputation, while precision and sharding stay outside of them.
PASSES: tuple[Pass, ...] = (_split_layers, _recompute_blocks, _compile_blocks, _place_weights)
