"""Train a model on one of several ranks, save it, and load it in a new trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.curves import global_batch
from tests.trainer.private_rank import open_config
from trainer.api import Trainer
from trainer.config.load import from_dict
from trainer.world import World


def train_and_save(config: dict[str, Any], steps: int, more: int) -> list[float]:
    """Save after some steps and return the losses of the steps that follow."""
    trainer = _start(config)
    for _ in range(steps):
        _step(trainer)
    trainer.save_checkpoint()
    losses = [_step(trainer) for _ in range(more)]
    trainer.checkpoints.close()
    return losses


def load_and_train(config: dict[str, Any], more: int) -> dict[str, Any]:
    """Return the losses after the newest checkpoint, and the weights as they were loaded, on rank 0."""
    trainer = _start(config)
    assert trainer.load_checkpoint() is not None
    weights = {name: value.numpy() for name, value in trainer.state_dict().items()}
    losses = [_step(trainer) for _ in range(more)]
    trainer.checkpoints.close()
    return {"losses": losses, "weights": weights}


def train_across_save(
    config: dict[str, Any], folder: str, resumes: bool, measure: Callable[[Trainer], Any] = lambda _: None
) -> tuple[Trainer, dict[str, Any]]:
    """Train four steps, with a save after the second, or load that save and train the last two.

    Return the trainer, and the last two losses, the norms of the weights, and what was measured at the save or load.
    """
    trainer = open_config(from_dict(config), folder)
    measured = None
    if resumes:
        trainer.load_checkpoint()
        measured = measure(trainer)
    losses = []
    for _ in range(trainer.step, 4):
        losses.append(_step(trainer))
        if trainer.step == 2:
            trainer.save_checkpoint()
            measured = measure(trainer)
    trainer.checkpoints.close()
    weights = {
        name: float(value.to_local().double().norm() if hasattr(value, "to_local") else value.double().norm())
        for name, value in trainer.engine.named_parameters()
    }
    return trainer, {"losses": losses[-2:], "weights": weights, "measured": measured}


def _start(config: dict[str, Any]) -> Trainer:
    rank, size = dist.get_rank(), dist.get_world_size()
    world = World(rank, size, rank, size, "here", torch.device("cpu"), (), dist.group.WORLD)
    return Trainer.from_config(from_dict(config), world, micro=2)


def _step(trainer: Trainer) -> float:
    whole = global_batch(trainer.config, trainer.step)
    size = trainer.config.batch.size // trainer.layout.dp_size
    first = trainer.layout.dp_rank(trainer.world.rank) * size
    result = trainer.run_step({name: value[first : first + size] for name, value in whole.items()})
    return float(trainer.mean_over_ranks(result.loss))
