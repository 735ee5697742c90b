"""A user's script with its own model, on each rank; each rank writes its results to a file.

torchrun ... -m tests.trainer.own_rank FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from trainer.api import Trainer
from trainer.config.errors import ConfigError
from trainer.config.schema import OptimizerConfig

STEPS, BATCH = 6, 8
OPTIMIZER = OptimizerConfig(lr=0.01, clip_norm=0.5)


class Own(nn.Module):
    """A model whose modules have none of the names that our models use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.last = nn.Sequential(nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def own_model(seed: int) -> Own:
    torch.manual_seed(seed)
    return Own()


def batch_of(step: int, rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """Return this rank's share of a batch that does not depend on the number of ranks."""
    inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))
    targets = inputs[:, :3].argmax(dim=1)
    share = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    return {"inputs": inputs[share], "targets": targets[share]}


def train(trainer: Trainer, steps: int) -> list[float]:
    """Train and return the mean losses over all ranks."""
    losses = []
    for _ in range(steps):
        trainer.train_step(batch_of(trainer.step, trainer.world.rank, trainer.world.size))
        losses.append(trainer.metrics()["loss"])
    return losses


def evaluate_unequally(trainer: Trainer) -> str:
    """Evaluate one batch more on each rank than on the rank before it, and return the error."""
    batches = [batch_of(0, trainer.world.rank, trainer.world.size)] * (2 + trainer.world.rank)
    try:
        trainer.evaluate(batches)
    except ConfigError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Train with ddp, then with fsdp from its checkpoint; without dropout, whose numbers depend on the rank."""
    rank = int(os.environ["RANK"])
    for strategy in ("ddp", "fsdp"):
        # Each rank starts with different weights: those of rank 0 must be used.
        trainer = Trainer(own_model(rank).eval(), strategy=strategy, optimizer=OPTIMIZER, folder=folder, device="cpu")
        before = trainer.load_checkpoint()
        losses = train(trainer, STEPS)
        trainer.save_checkpoint(extra={"losses": losses})
        seen = {
            "before": before,
            "losses": losses,
            "metrics": trainer.metrics(),
            "refused": evaluate_unequally(trainer),
        }
        (folder / f"{strategy}-{rank}.json").write_text(json.dumps(seen))
        trainer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
