"""A user's script whose code fails on one of its ranks.

python -m tests.trainer.forked_ranks 2 tests.trainer.failing_script FOLDER
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from trainer.api import Trainer

FAILING_RANK, GOOD_STEPS = 1, 2


def main(folder: str) -> None:
    trainer = Trainer(nn.Linear(2, 2), strategy="ddp", folder=folder, device="cpu")
    while trainer.step < 2 * GOOD_STEPS:
        trainer.train_step(read_batch(trainer.step, trainer.world.rank))


def read_batch(step: int, rank: int) -> dict[str, torch.Tensor]:
    row = {"image": torch.ones(2, 2), "target": torch.tensor([0, 1])}
    label = row["label" if rank == FAILING_RANK and step == GOOD_STEPS else "target"]
    return {"inputs": row["image"], "targets": label}


if __name__ == "__main__":
    main(sys.argv[1])
