"""Build the engine for a model and a layout, by passes that change the model in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem, list_divisors
from trainer.config.layout import check_vocabulary
from trainer.config.reduction import ZERO_PARAMETERS, zero_stage
from trainer.models.experts import Experts
from trainer.models.head import takes_objective
from trainer.parallel.cast import cast_forward
from trainer.parallel.compile import compile_units
from trainer.parallel.context import split_sequences
from trainer.parallel.convolutions import tune_convolutions
from trainer.parallel.document_kernel import choose_document_kernel
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.experts import spread_experts
from trainer.parallel.fp8 import use_fp8_products
from trainer.parallel.materialize import Factory, Fill, allocate_weights, build_model, initialize
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.recompute import recompute_units
from trainer.parallel.same_model import check_same_tensors
from trainer.parallel.shard_weights import shard_weights
from trainer.parallel.tensor import list_mixtures, split_layers
from trainer.parallel.units import Units, find_units

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
# Start-up: torch's modules for each way of spreading a model take long to import, so a run imports only those it uses.
# ruff: noqa: PLC0415


Pass = Callable[[nn.Module, Units, Recipe, Mesh], None]
# Each pass has a file of its own, and changes a model or a pipeline stage in place, or does nothing if the recipe does
# not need it. Several passes wrap the `forward` of a module, so later passes are outside of earlier ones: compiled
# graphs contain the recomputation, while precision and sharding stay outside of them. docs/engines.md has this list.
PASSES: tuple[Pass, ...] = (
    split_sequences,
    choose_document_kernel,
    split_layers,
    spread_experts,
    tune_convolutions,
    use_fp8_products,
    recompute_units,
    compile_units,
    cast_forward,
    shard_weights,
    allocate_weights,
)


def parallelize(model: nn.Module | Factory, recipe: Recipe, mesh: Mesh, fill: Fill | None = None) -> Engine:
    """Spread a model over the ranks of the mesh.

    With a factory and `fill`, the model is built without memory and filled part by part, so it need not fit on one
    device. Otherwise the model's own values are used, and all ranks get those of rank 0.
    """
    if not recipe.communication.inner_steps:
        return _make_engine(model, recipe, mesh, fill)
    # Between outer steps (trainer/engines/outer_step.py), each copy of the model trains as if it were the only one.
    engine = _make_engine(model, recipe, mesh.without_replicas(), fill)
    engine.mesh = mesh
    return engine


def _make_engine(model: nn.Module | Factory, recipe: Recipe, mesh: Mesh, fill: Fill | None) -> Engine:
    _check_offload(recipe, mesh.device)
    choices: list[str] = []
    built = build_model(model, mesh.device, fill, choices, recipe)
    _check_trained(built)
    _check_names(built, mesh)
    _check_head(built, recipe, mesh)
    _check_experts(built, recipe, mesh)
    _check_cache(built, recipe)
    _check_weights(built, recipe)
    units = find_units(built)
    _check_units(units, recipe, mesh)
    if recipe.compiled.mode == "whole" and recipe.compiles_blocks(mesh.layout):
        choices.append("compile: blocks, because the engine works between them")
    if mesh.layout.pipeline > 1:
        return _make_pipeline(built, recipe, mesh, choices, fill)
    _apply_passes(built, units, recipe, mesh, fill)
    if recipe.uses_fully_shard(mesh.layout):
        return _make_sharded(built, units, recipe, mesh, choices)
    if recipe.parallel.engine == "muster" and mesh.layout.tensor == 1:
        from trainer.engines.data_parallel import DataParallelEngine

        return DataParallelEngine(built, units, recipe, mesh, choices)
    if recipe.compiled.cuda_graph and (reason := _find_graph_obstacle(recipe, mesh)):
        choices.append(f"cuda_graph: not used, because {reason}")
    elif recipe.compiled.cuda_graph:
        from trainer.parallel.cuda_graph import GraphEngine

        return GraphEngine(built, units, recipe, mesh, choices)
    if mesh.weights.replicate == 1:
        return PlainEngine(built, units, recipe, mesh, choices)
    from trainer.parallel.ddp import DdpEngine

    return DdpEngine(built, units, recipe, mesh, choices)


def _make_sharded(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> Engine:
    if recipe.parallel.engine == "muster":
        from trainer.engines.sharded import ShardedEngine

        return ShardedEngine(model, units, recipe, mesh, choices)
    from trainer.parallel.fsdp import FsdpEngine

    return FsdpEngine(model, units, recipe, mesh, choices)


def _find_graph_obstacle(recipe: Recipe, mesh: Mesh) -> str:
    """Return why micro-batches cannot be replayed as CUDA graphs; empty if they can."""
    if recipe.parallel.recompute != "none":  # chosen by strategy=auto
        return f"parallel.recompute={recipe.parallel.recompute} repeats the forward pass"
    if mesh.device.type != "cuda":
        return f"the device is {mesh.device.type}"
    return "ddp averages gradients during the backward pass" if mesh.weights.replicate > 1 else ""


def _check_offload(recipe: Recipe, device: torch.device) -> None:
    if recipe.parallel.offload and device.type != "cuda":
        message = f"true, but the device is {device.type}: parameters are in host memory already"
        fix = "set parallel.offload to false, or run.device to cuda"
        raise ConfigError([ConfigProblem("parallel.offload", message, fix)])


def _check_trained(model: nn.Module) -> None:
    if not any(weight.requires_grad for weight in model.parameters()):
        message = f"{type(model).__name__} has no weight with requires_grad, so there is nothing to train"
        raise ConfigError([ConfigProblem("model", message, "call requires_grad_(True) on the parts to train")])


def _check_cache(model: nn.Module, recipe: Recipe) -> None:
    """Check that a model does not collect keys and values of its layers: recomputed layers would add theirs twice."""
    is_cached = any(getattr(getattr(part, "config", None), "use_cache", False) for part in model.modules())
    if recipe.parallel.recompute != "none" and is_cached:
        message = f"{recipe.parallel.recompute}, but config.use_cache of {type(model).__name__} is true"
        fix = "set model.config.use_cache to False, which training does not need, or use none"
        raise ConfigError([ConfigProblem("parallel.recompute", message, fix)])


def _check_weights(model: nn.Module, recipe: Recipe) -> None:
    """Check that no part of a model needs fp32 weights."""
    if recipe.formats.weights == "fp32":
        return
    stored, name = recipe.formats.weights, type(model).__name__
    obstacle = ""
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        obstacle = f"the batch norms of {name} need weights in the format of their statistics, fp32"
    elif recipe.parallel.pipeline > 1 and not getattr(model, "casts_residual", False):
        obstacle = f"pipeline stages of {name} exchange fp32 values, and its layers would return {stored}"
    if obstacle:
        raise ConfigError([ConfigProblem("optimizer.weights", f"{stored}, but {obstacle}", "set it to fp32")])


def _check_names(model: nn.Module, mesh: Mesh) -> None:
    """Check that a model to be split has the modules that pipeline and tensor parallelism look up by name."""
    parts = ("embed", "layers", "norm", "head")
    missing = [name for name in parts if not isinstance(getattr(model, name, None), nn.Module)]
    for axis in ("pipeline", "tensor"):
        if getattr(mesh.layout, axis) > 1 and missing:
            message = f"{getattr(mesh.layout, axis)}, but {type(model).__name__} has no {', '.join(missing)} to split"
            fix = f"set it to 1, or give the model modules named {', '.join(parts)}"
            raise ConfigError([ConfigProblem(f"parallel.{axis}", message, fix)])


def _check_head(model: Any, recipe: Recipe, mesh: Mesh) -> None:
    """Check that every tensor parallel rank has a part of the vocabulary, if the engine splits it."""
    is_split = mesh.layout.tensor > 1 and recipe.parallel.engine == "torch"
    problems = check_vocabulary(model.head.out_features, mesh.layout.tensor) if is_split else []
    if problems:
        raise ConfigError(problems)


def _check_experts(model: nn.Module, recipe: Recipe, mesh: Mesh) -> None:
    """Check that a model has experts to spread, and that none of its experts would be split by the other settings."""
    layers = [part for part in model.modules() if isinstance(part, Experts)]
    counts = sorted({part.gate.weight.shape[0] for part in layers})
    ranks, tensor, name = mesh.layout.expert, mesh.layout.tensor, type(model).__name__
    problems = []
    if ranks > 1 and not layers:
        message = f"{ranks}, but {name} has no layer of trainer.models.experts.Experts"
        problems.append(ConfigProblem("parallel.expert", message, "set it to 1"))
    for count in counts:
        if count % ranks:
            message = f"{ranks} ranks do not divide {count} experts of {name}"
            problems.append(ConfigProblem("parallel.expert", message, f"use one of {list_divisors(count)}"))
    if tensor > 1 and len(layers) > len(list_mixtures(model)):
        message = f"{tensor}, but the experts of {name} are not in a MixtureOfExperts called ffn"
        problems.append(ConfigProblem("parallel.tensor", message, "set it to 1, and parallel.expert to more than 1"))
    elif tensor > 1 and ranks > 1:
        message = f"{ranks}, but parallel.tensor={tensor} splits every expert of {name}"
        problems.append(ConfigProblem("parallel.expert", message, "set one of the two to 1"))
    if ranks > 1 and recipe.parallel.offload:
        message = f"{ranks}, but parallel.offload moves no experts to the host"
        problems.append(ConfigProblem("parallel.expert", message, "set it to 1, or parallel.offload to false"))
    if problems:
        raise ConfigError(problems)


def _check_units(units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Check that a model has units for every setting that works on them; without any it would have no effect."""
    problems = []
    if recipe.parallel.recompute != "none" and not units.layers:
        problems.append(_describe_missing(units, "parallel.recompute", recipe.parallel.recompute))
    if recipe.compiles_blocks(mesh.layout) and not units.layers:
        problems.append(_describe_missing(units, "compile.mode", recipe.compiled.mode))
    if recipe.uses_fully_shard(mesh.layout) and zero_stage(recipe.parallel) == ZERO_PARAMETERS and not units.separable:
        problems.append(_describe_missing(units, "parallel.zero", "3"))
    if problems:
        raise ConfigError(problems)


def _describe_missing(units: Units, setting: str, value: str) -> ConfigProblem:
    if units.layers:
        message = f"{value}, but all layers of {units.model} share weights, so none can be gathered alone"
    else:
        message = f"{value}, but {units.model} has no layers that could be handled one by one"
    fix = "2 or 1" if setting == "parallel.zero" else "none"
    return ConfigProblem(setting, message, f"put layers into an nn.ModuleList or nn.Sequential, or use {fix}")


def _make_pipeline(model: Any, recipe: Recipe, mesh: Mesh, choices: list[str], fill: Fill | None) -> Engine:
    from trainer.parallel.stages import Ends, cut_stage, list_stages, send_contiguous

    if recipe.parallel.engine == "muster":
        check_same_tensors(model, dist.group.WORLD, mesh.device)
    casts_residual = getattr(model, "casts_residual", False)
    ends = Ends(model.embed.embedding_dim, model.head.out_features, takes_objective(model), casts_residual)
    stages = [
        cut_stage(model, index, recipe.parallel) for index in list_stages(recipe.parallel, mesh.coordinate("pipeline"))
    ]
    units = [find_units(stage) for stage in stages]
    for stage, stage_units in zip(stages, units, strict=True):
        _apply_passes(stage, stage_units, recipe, mesh, fill)
        send_contiguous(stage)
    if recipe.parallel.engine == "muster":
        from trainer.engines.pipeline.engine import PipelineEngine as MusterPipelineEngine

        return MusterPipelineEngine(stages, find_units(model), ends=ends, recipe=recipe, mesh=mesh, choices=choices)
    if mesh.weights.replicate > 1 and not recipe.uses_fully_shard(mesh.layout):
        from trainer.parallel.ddp import wrap

        stages = [wrap(stage, recipe, mesh)[0] for stage in stages]
    from trainer.parallel.pipeline import PipelineEngine

    return PipelineEngine(stages, find_units(model), ends=ends, recipe=recipe, mesh=mesh, choices=choices)


def _apply_passes(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, fill: Fill | None) -> None:
    """Apply all passes to a model or a pipeline stage, in place, and initialise its weights."""
    for change in PASSES:
        change(model, units, recipe, mesh)
    if fill is not None:
        initialize(model, mesh.device, fill)
