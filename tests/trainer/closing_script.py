"""A user's script that closes its trainer in a `finally`, and whose code fails on one of its ranks.

python -m tests.trainer.forked_ranks 2 tests.trainer.closing_script FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch import nn

from tests.trainer.checkpoint_state import find_writer
from tests.trainer.failing_script import GOOD_STEPS, read_batch
from trainer.api import Trainer


def main(folder: str) -> None:
    trainer = Trainer(nn.Linear(2, 2), strategy="ddp", folder=folder, device="cpu")
    try:
        while trainer.step < 2 * GOOD_STEPS:
            trainer.train_step(read_batch(trainer.step, trainer.world.rank))
            trainer.start_save(None, {})
    finally:
        writer = find_writer(os.getpid())
        trainer.close(timeout_s=5)
        is_alive = Path(f"/proc/{writer}").exists()
        print(f"rank {trainer.world.rank} closed its trainer; its writer {'is alive' if is_alive else 'has ended'}")


if __name__ == "__main__":
    main(sys.argv[1])
