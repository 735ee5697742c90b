"""`python -m trainer` that stands still on one rank before one step, so that a test can kill a run in the middle.

HOLD=RANK:STEP torchrun ... -m tests.trainer.held_rank PRESET key=value ...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.trainer.launch import HELD
from trainer.__main__ import main
from trainer.api import Trainer

LONG_S = 600.0


def hold(at_step: int) -> None:
    held: Any = Trainer
    run_step = held.run_step

    def held_step(trainer: Trainer, batch: Any) -> Any:
        if trainer.step + 1 == at_step:
            Path(trainer.config.run.folder, HELD).touch()
            time.sleep(LONG_S)
        return run_step(trainer, batch)

    held.run_step = held_step


if __name__ == "__main__":
    rank, step = os.environ["HOLD"].split(":")
    if rank == os.environ.get("RANK", "0"):
        hold(int(step))
    os._exit(main(sys.argv[1:]))
