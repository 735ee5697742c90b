"""Ranks of a run in which one rank fails in a given way before a step, never joins, or cannot read a file.

python -m tests.trainer.forked_ranks RANKS tests.trainer.failing_rank MODE RANK STEP CONFIG [key.sub=value ...]
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from trainer.__main__ import main
from trainer.api import Trainer
from trainer.checkpoint import read_retry

UNREADABLE = "unreadable "


def fail(mode: str) -> None:
    if mode == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 3 GiB free.")
    if mode == "host memory":
        torch.empty(1 << 60)
    if mode == "device":
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nCompile with ...")
    if mode == "full disk":
        Path("/dev/full").write_text("a cache of the user")
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


def fail_before_step(mode: str, at_step: int) -> None:
    trainer_class: Any = Trainer
    run_step = trainer_class.run_step

    def failing_step(trainer: Trainer, batch: Any) -> Any:
        if trainer.step + 1 == at_step:
            fail(mode)
        return run_step(trainer, batch)

    trainer_class.run_step = failing_step


def fail_to_open(name: str) -> None:
    """Fail as a filesystem does on one node, for files of this name; the checks of checkpoints do not open them so."""
    path_class: Any = Path
    open_path = path_class.open

    def failing_open(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open_path(path, *arguments, **options)

    path_class.open = failing_open
    read_retry.RETRY_WAITS_S = (0.01,)


if __name__ == "__main__":
    mode, failing_rank, at_step, *arguments = sys.argv[1:]
    if os.environ["RANK"] == failing_rank:
        if mode == "absent":
            os._exit(0)
        if mode.startswith(UNREADABLE):
            fail_to_open(mode.removeprefix(UNREADABLE))
        fail_before_step(mode, int(at_step))
    status = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
