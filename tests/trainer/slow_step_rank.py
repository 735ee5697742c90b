"""A rank whose micro-batches take long.

MICRO_S=0.5 python -m tests.trainer.slow_step_rank CONFIG ...
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

import torch

from trainer.models.head import Head
from trainer.objective import CrossEntropy


def slow_down(seconds: float) -> None:
    compute = CrossEntropy.from_hidden

    def compute_slowly(self: CrossEntropy, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        return compute(self, hidden, head, targets)

    objective: Any = CrossEntropy
    objective.from_hidden = compute_slowly


if __name__ == "__main__":
    slow_down(float(os.environ["MICRO_S"]))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
