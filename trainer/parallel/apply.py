"""From a model and a layout to the engine that trains it."""

from __future__ import annotations

import torch
from torch import nn

from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import CompileConfig, ParallelConfig, Precision
from trainer.parallel.blocks import blocks
from trainer.parallel.engine import Engine
from trainer.parallel.layout import Layout
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.weights import Factory, Fill, describe, initialise, materialise
from trainer.precision import autocast_forward


def parallelize(
    model: nn.Module | Factory,
    parallel: ParallelConfig,
    layout: Layout,
    *,
    rank: int,
    device: torch.device,
    precision: Precision,
    compiled: CompileConfig,
    fill: Fill | None = None,
) -> Engine:
    """Spread a model over the layout.

    A factory together with `fill` is built without memory and filled part by part, so the model need not fit on one
    device; otherwise the model's own values count, rank 0's for everybody.
    """
    _refuse(parallel, device)
    sharded = _is_sharded(parallel, layout)
    mesh = Mesh(layout, rank, device, sharded=sharded)
    described = describe(model, device, fill)
    choices: list[str] = []
    if sharded:
        return _sharded(described, parallel, mesh, precision, compiled, choices, fill)
    return _whole(described, parallel, mesh, precision, compiled, choices, fill)


def _refuse(parallel: ParallelConfig, device: torch.device) -> None:
    if parallel.offload and device.type != "cuda":
        raise ConfigError(
            [
                Problem(
                    "parallel.offload",
                    f"true, but the device is {device.type}: there is no other memory to leave",
                    "set parallel.offload to false, or run on a GPU",
                )
            ]
        )


def _is_sharded(parallel: ParallelConfig, layout: Layout) -> bool:
    """Tensor parallel parts are DTensors, which fully_shard takes and DDP does not."""
    return parallel.strategy in ("fsdp", "hsdp") or layout.tensor > 1


def _whole(
    model: nn.Module,
    parallel: ParallelConfig,
    mesh: Mesh,
    precision: Precision,
    compiled: CompileConfig,
    choices: list[str],
    fill: Fill | None,
) -> Engine:
    materialise(model, mesh.device)
    if fill is not None:
        initialise([model], mesh.device, fill)
    autocast_forward(model, precision, mesh.device)
    if compiled.mode == "blocks":
        _compile_blocks(model, compiled)
    if mesh.layout.replicate == 1:
        return PlainEngine(model, mesh, compiled, choices)
    from trainer.parallel.ddp import DdpEngine  # noqa: PLC0415

    return DdpEngine(model, parallel, mesh, compiled, choices)


def _sharded(
    model: nn.Module,
    parallel: ParallelConfig,
    mesh: Mesh,
    precision: Precision,
    compiled: CompileConfig,
    choices: list[str],
    fill: Fill | None,
) -> Engine:
    from trainer.parallel.fsdp import FsdpEngine, shard  # noqa: PLC0415

    shard(model, parallel, precision, mesh)
    if fill is not None:
        initialise([model], mesh.device, fill)
    return FsdpEngine(model, parallel, mesh, compiled, choices)


def _compile_blocks(model: nn.Module, compiled: CompileConfig) -> None:
    for block in blocks(model):
        block.compile(backend=compiled.backend)
