"""A rank whose micro-batches take long; one rank is warned by a signal in its micro-batch of a given number.

MICRO_S=0.5 WARNED=1:22 python -m tests.trainer.slow_step_rank CONFIG ...
"""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import time
from typing import Any

import torch

from trainer.models.head import Head
from trainer.objective import CrossEntropy


def slow_down(seconds: float, warned_in: int) -> None:
    compute, numbers = CrossEntropy.from_hidden, itertools.count(1)

    def compute_slowly(self: CrossEntropy, hidden: torch.Tensor, head: Head, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        if next(numbers) == warned_in:
            os.kill(os.getpid(), signal.SIGUSR1)
        return compute(self, hidden, head, targets)

    objective: Any = CrossEntropy
    objective.from_hidden = compute_slowly


if __name__ == "__main__":
    rank, _, number = os.environ["WARNED"].partition(":")
    slow_down(float(os.environ["MICRO_S"]), int(number) if os.environ["RANK"] == rank else 0)
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
