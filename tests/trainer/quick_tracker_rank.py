"""A rank whose tracker gives up early, so that a test need not wait for half a minute.

INIT_S=3 CLOSE_S=10 python -m tests.trainer.quick_tracker_rank CONFIG [key.sub=value ...]
"""

from __future__ import annotations

import os
import runpy

from trainer.metrics import trackers, wandb_tracker

if __name__ == "__main__":
    wandb_tracker._INIT_TIMEOUT_S = float(os.environ["INIT_S"])
    trackers._CLOSE_TIMEOUT_S = float(os.environ["CLOSE_S"])
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
