"""A rank whose micro-batches take long.

MICRO_S=0.5 python -m tests.trainer.slow_step_rank CONFIG ...
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

import torch

import trainer.api
from trainer.models.functional import compute_loss


def slow_down(seconds: float) -> None:
    def compute_slowly(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        return compute_loss(outputs, targets)

    api: Any = trainer.api
    api.compute_loss = compute_slowly


if __name__ == "__main__":
    slow_down(float(os.environ["MICRO_S"]))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
