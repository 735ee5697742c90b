"""A rank whose checkpoint writer stands still for a while, as on a file server that hangs.

STALL_S=3 python -m tests.trainer.slow_writer_rank CONFIG ...
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
from contextlib import suppress
from typing import Any

from tests.trainer.checkpoint_state import find_writer
from trainer.api import Trainer


def stall_writer(seconds: float) -> None:
    """Stop the writer as soon as it exists and let it continue after some seconds."""
    stalled: Any = Trainer
    prepare = stalled.prepare_saves

    def prepare_and_stop(trainer: Trainer) -> None:
        prepare(trainer)
        writer = find_writer(os.getpid())
        os.kill(writer, signal.SIGSTOP)
        timer = threading.Timer(seconds, resume, [writer])
        timer.daemon = True
        timer.start()

    stalled.prepare_saves = prepare_and_stop


def resume(writer: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(writer, signal.SIGCONT)


if __name__ == "__main__":
    stall_writer(float(os.environ["STALL_S"]))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
