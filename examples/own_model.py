"""Train your own model: a small classifier, with checkpoints that any number of ranks can resume.

Run it with `python examples/own_model.py` where torch is installed, with the repository in PYTHONPATH. To run it on a
cluster, see examples/own_model.sbatch.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from trainer.api import Trainer
from trainer.config.schema import OptimizerConfig

BATCH = 64
EVALUATE_EVERY = 50
# No run has so many steps, so this batch is never trained on.
HELD_OUT_STEP = 10**9


class Classifier(nn.Module):
    """A plain torch module with one input; nothing in it depends on the number of ranks."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(inputs))


def make_batch(step: int, rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """Return this rank's share of a step's batch; the whole batch is the same for any number of ranks."""
    inputs = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
    targets = inputs[:, :4].argmax(dim=1)
    share = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    return {"inputs": inputs[share], "targets": targets[share]}


def main() -> None:
    """Train, starting from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", default="runs/own-model")
    parser.add_argument("--strategy", default="single", help="single, ddp or fsdp")
    options = parser.parse_args()

    trainer = Trainer(
        Classifier(),
        strategy=options.strategy,
        optimizer=OptimizerConfig(lr=1e-2),
        steps=options.steps,
        folder=options.folder,
        best="accuracy",
    )
    rank, ranks = trainer.world.rank, trainer.world.size

    def make_held_out() -> list[dict[str, torch.Tensor]]:
        return [make_batch(HELD_OUT_STEP, rank, ranks)]

    trainer.load_checkpoint()
    while trainer.step < options.steps:
        trainer.train_step(make_batch(trainer.step, rank, ranks))
        if trainer.step % EVALUATE_EVERY == 0 or trainer.step == options.steps:
            # Every rank takes part in all three; one prints.
            loss, figures = trainer.metrics()["loss"], trainer.evaluate(make_held_out)
            trainer.save_checkpoint(metric=figures["accuracy"])
            if rank == 0:
                print(f"step {trainer.step}  loss {loss:.4f}  held-out accuracy {figures['accuracy']:.0%}", flush=True)
    trainer.close()


if __name__ == "__main__":
    main()
