"""`python -m trainer`, but from step FROM to step TO waiting for the GPU is an error and CUDA calls are counted.

WATCH=FROM:TO python -m tests.gpu.watched_run PRESET key=value ...     WAIT=1 waits on purpose
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.__main__ import main
from trainer.api import Trainer

FILE = "calls.json"


class Watch:
    """Two detectors of waits: torch's own, for its operations, and the profiler, which sees all CUDA calls.

    Neither counts waiting for an event of the previous step, by which the loop stays one step ahead of the GPU.
    """

    def __init__(self, first: int, last: int, waits: bool) -> None:
        self._first, self._last, self._waits = first, last, waits
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._began = 0

    def around(self, run_step: Any) -> Any:
        def watched(trainer: Trainer, batch: Any) -> Any:
            self.before(trainer.step + 1, Path(trainer.config.run.folder))
            result = run_step(trainer, batch)
            if self._waits and trainer.step > self._first:
                float(result.loss)
            return result

        return watched

    def before(self, step: int, folder: Path) -> None:
        # The profiler itself waits when it starts, which takes one step.
        if step == self._first:
            self._profile.start()
        if step == self._first + 1:
            torch.cuda.set_sync_debug_mode("error")
            self._began = time.time_ns()
        if step == self._last:
            torch.cuda.set_sync_debug_mode("default")
            ended = time.time_ns()
            self._profile.stop()
            (folder / FILE).write_text(json.dumps(self._calls(ended)))

    def _calls(self, ended: int) -> dict[str, int]:
        raw = self._profile.profiler.kineto_results.events()
        inside = [event.name() for event in raw if self._began <= event.start_ns() < ended]
        return dict(Counter(name for name in inside if name.startswith(("cuda", "cuLaunch", "Memcpy"))))


if __name__ == "__main__":
    first, last = os.environ["WATCH"].split(":")
    trainer: Any = Trainer
    trainer.run_step = Watch(int(first), int(last), "WAIT" in os.environ).around(trainer.run_step)
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
