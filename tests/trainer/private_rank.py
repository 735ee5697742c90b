"""A rank whose engine has a tensor of its own, which it saves and loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from trainer.api import Trainer
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.parallel.plain import PlainEngine
from trainer.world import World


class PrivateEngine:
    """The part of an engine that leaves something over in each step, on each rank something else."""

    left_over: torch.Tensor

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "left_over", self.left_over


def save_and_load(folder: str, before: str, after: str) -> dict[str, Any]:
    """Save with one strategy, load with another, and return this rank's tensor and what was not restored."""
    with patch.object(PlainEngine, "private_tensors", PrivateEngine.private_tensors):
        first = open_trainer(folder, before)
        first.run_step(make_batch())
        fill(first, dist.get_rank() + 1)
        first.save_checkpoint()
        first.checkpoints.close()
        second = open_trainer(folder, after)
        fill(second, 0)
        second.load_checkpoint()
        engine: Any = second.engine
        left_over, notes = engine.left_over.tolist(), second.restore_notes
        # A checkpoint of its own layout restores everything.
        second.save_checkpoint()
        second.load_checkpoint()
        second.checkpoints.close()
        return {"left_over": left_over, "step": second.step, "notes": notes, "later_notes": second.restore_notes}


def open_trainer(folder: str, strategy: str) -> Trainer:
    config = load("tiny-mlp", [f"parallel.strategy={strategy}", "batch.micro=2"])
    with patch.object(PlainEngine, "left_over", torch.zeros(3), create=True):
        return open_config(config, folder)


def open_config(config: Config, folder: str) -> Trainer:
    """Return the trainer of a configuration, on the ranks that run this, with its checkpoints in a folder."""
    rank, size = dist.get_rank(), dist.get_world_size()
    world = World(rank, size, rank, size, "here", torch.device("cpu"), (), dist.group.WORLD)
    config = replace(config, run=replace(config.run, folder=folder))
    return Trainer.from_config(config, world, int(config.batch.micro))


def fill(trainer: Trainer, value: int) -> None:
    engine: Any = trainer.engine
    engine.left_over = torch.full((3,), float(value))


def make_batch() -> dict[str, torch.Tensor]:
    config: Any = load("tiny-mlp", []).model
    return {"inputs": torch.zeros(2, config.inputs), "targets": torch.zeros(2, dtype=torch.int64)}
