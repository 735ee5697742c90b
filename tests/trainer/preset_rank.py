"""Train a preset on one of several ranks as a run does: resolve `auto`, build, train, save, and load again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.api import Trainer
from trainer.auto_settings import resolve_auto
from trainer.config.load import load
from trainer.data.loader import Loader
from trainer.data.registry import open_source
from trainer.data.source import Source
from trainer.world import World

NODES = 2


def train_preset(preset: str, overrides: list[str], folder: str, steps: int) -> dict[str, Any]:
    """Return the losses, the last one again after loading a checkpoint, the resolved settings and the layout."""
    rank, size = dist.get_rank(), dist.get_world_size()
    local = size // NODES
    world = World(rank, size, rank % local, local, "here", torch.device("cpu"), (), dist.group.WORLD)
    config = load(preset, overrides)
    source = open_source(config)
    resolved = resolve_auto(config, world, source, Path(folder))
    trainer = Trainer.from_config(resolved.config, world, resolved.micro)
    losses = [_step(trainer, source, position) for position in range(steps - 1)]
    trainer.save_checkpoint()
    last = _step(trainer, source, steps - 1)
    trainer.load_checkpoint()
    again = _step(trainer, source, steps - 1)
    trainer.checkpoints.close()
    return {"losses": [*losses, last], "again": again, "config": resolved.config, "layout": trainer.layout}


def _step(trainer: Trainer, source: Source, step: int) -> float:
    batch, layout = trainer.config.batch.size, trainer.layout
    share = {"dp_rank": layout.dp_rank(trainer.world.rank), "dp_size": layout.dp_size}
    loader = Loader(source, trainer.config.run.seed, batch, position=step * batch, workers=0, **share)
    result = trainer.run_step(next(loader).tensors)
    loader.close()
    return float(trainer.mean_over_ranks(result.loss))
