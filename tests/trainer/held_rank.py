"""A rank that stops before a step, so that a test can kill a run in the middle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.trainer.launch import HELD
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
