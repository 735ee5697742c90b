"""A rank whose tracker gives up early, so that a test need not wait for half a minute.

INIT_S=3 CLOSE_S=10 [OPENED=FILE] python -m tests.trainer.quick_tracker_rank CONFIG [key.sub=value ...]

INIT_S is the time to reach the server, and CLOSE_S that at the end. With OPENED, the tracker is not open before there
is this file.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path
from typing import Any

from trainer.metrics import trackers, wandb_tracker

# To start wandb's own process, without a server, on a busy machine.
OFFLINE_INIT_S = 240.0


def give_up_after(seconds: float) -> None:
    tracker: Any = wandb_tracker.WandbTracker
    start, open_run = tracker._start, tracker.open

    def start_in_time(self: Any, mode: str) -> None:
        wandb_tracker._INIT_TIMEOUT_S = seconds if mode == "online" else OFFLINE_INIT_S
        start(self, mode)

    def open_late(self: Any) -> str:
        message: str = open_run(self)
        while not Path(os.environ.get("OPENED", "/")).exists():
            time.sleep(0.05)
        return message

    tracker._start, tracker.open = start_in_time, open_late


if __name__ == "__main__":
    give_up_after(float(os.environ["INIT_S"]))
    trackers._CLOSE_TIMEOUT_S = float(os.environ["CLOSE_S"])
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
