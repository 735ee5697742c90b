"""Train, save and load checkpoints on a rank, for tests in which one strategy loads what another one has saved."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.curves import global_batch
from trainer.api import Trainer
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER
from trainer.config.load import from_dict
from trainer.world import World

STEPS_BEFORE_SAVE = 2


@dataclass(frozen=True)
class Visit:
    """The state of a rank, by name and digest, and the mean loss of the step that follows."""

    digests: dict[str, str]
    step: int
    next_loss: float


def save(config: dict[str, Any]) -> Visit:
    """Train a few steps, save to the run folder, train one more."""
    trainer = _open(config)
    for _ in range(STEPS_BEFORE_SAVE):
        _train_step(trainer)
    trainer.save_checkpoint()
    visit = _describe(trainer, trainer._step.saved_tensors())
    trainer.checkpoints.close()
    return visit


def load(config: dict[str, Any], folders: list[Path], *, saves: bool = False) -> list[Visit]:
    """Load the checkpoint of each run folder and train one step after it; save each one before that step if asked."""
    trainer = _open(config)
    own, visits = trainer.checkpoints, []
    for folder in folders:
        trainer.checkpoints = trainer.open_checkpoints(folder / CHECKPOINTS_FOLDER)
        assert trainer.load_checkpoint() is not None
        trainer.checkpoints.close()
        trainer.checkpoints = own
        if saves:
            trainer.save_checkpoint()
        visits.append(_describe(trainer, trainer._step.tensors()))
    own.close()
    return visits


def _open(config: dict[str, Any]) -> Trainer:
    rank, size = dist.get_rank(), dist.get_world_size()
    world = World(rank, size, rank, size, "here", torch.device("cpu"), (), dist.group.WORLD)
    settings = from_dict(config)
    assert isinstance(settings.batch.micro, int)
    return Trainer.from_config(settings, world, settings.batch.micro)


def _describe(trainer: Trainer, tensors: dict[str, torch.Tensor]) -> Visit:
    digests = {name: _compute_digest(tensor) for name, tensor in tensors.items()}
    step = trainer.step
    return Visit(digests, step, _train_step(trainer))


def _compute_digest(tensor: Any) -> str:
    """Return a checksum of a whole tensor; every rank that has a part of it must call this."""
    whole = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    text = f"{whole.dtype} {tuple(whole.shape)}"
    return sha256(text.encode() + whole.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def _train_step(trainer: Trainer) -> float:
    config, mesh = trainer.config, trainer.engine.mesh
    size = config.batch.size // mesh.layout.dp_size
    whole = global_batch(config, trainer.step)
    result = trainer.run_step({key: value[mesh.dp_rank * size :][:size] for key, value in whole.items()})
    return float(trainer.mean_over_ranks(result.loss))
