"""Ranks of a run in which one rank fails or stands still before a step, never joins, or cannot read a file.

python -m tests.trainer.forked_ranks RANKS tests.trainer.failing_rank MODE RANK STEP CONFIG [key.sub=value ...]
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from tests.trainer.launch import checkpoint
from trainer import __main__ as program
from trainer import world
from trainer.api import Trainer
from trainer.checkpoint import read_retry
from trainer.data.loader import Loader
from trainer.life import outcome

UNREADABLE = "unreadable "
PRESENT_S = 240.0
# Marks the moment from which a rank stands still.
STUCK = Path("stuck")


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
    if mode in ("hang", "freeze"):
        stand_still(mode)


def stand_still(mode: str) -> None:
    STUCK.touch()
    if mode == "freeze":
        # Its watchdog publishes where it is. Otherwise the others may believe that it still saves, which takes longer.
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def wait_for_saves() -> None:
    """Let each save end before the next step, or it could count as the cause, or be missing at the end.

    A step is not saved while an earlier one is being saved. The wait is part of the save, which has a longer limit than
    a step: on a busy machine, a writer may take seconds.
    """
    trainer_class: Any = Trainer
    start_save = trainer_class.start_save

    def awaited_save(trainer: Trainer, *arguments: Any) -> None:
        start_save(trainer, *arguments)
        trainer.finish_save(None)
        # Rank 0 publishes it when all ranks have written their parts.
        while not checkpoint(Path("run"), trainer.step).exists():
            time.sleep(0.01)

    trainer_class.start_save = awaited_save


def fail_before_step(mode: str, at_step: int) -> None:
    trainer_class: Any = Trainer
    run_step = trainer_class.run_step

    def failing_step(trainer: Trainer, batch: Any) -> Any:
        if trainer.step + 1 == at_step:
            fail(mode)
        return run_step(trainer, batch)

    trainer_class.run_step = failing_step


def stand_still_before_batch(number: int) -> None:
    loader_class: Any = Loader
    next_batch, calls = loader_class.__next__, itertools.count(1)

    def failing_batch(loader: Loader) -> Any:
        if next(calls) == number:
            stand_still("hang")
        return next_batch(loader)

    loader_class.__next__ = failing_batch


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


class PatientStore:
    """A store in which the time to wait for an absent rank begins when all others have registered."""

    def __init__(self, store: Any, absent: str) -> None:
        self._store, self._absent = store, absent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait([key for key in keys if key != f"member/{self._absent}"], timedelta(seconds=PRESENT_S))
        self._store.wait(keys, timeout)


def join_without(absent: str) -> None:
    """Give the ranks that are present time to find each other: on a busy machine they do not start at once."""
    module: Any = world
    register, open_store = world._register, world.open_store
    module._register = lambda store, *arguments: register(PatientStore(store, absent), *arguments)
    module.open_store = lambda address, port, is_master, _: open_store(address, port, is_master, PRESENT_S)


if __name__ == "__main__":
    mode, failing_rank, at_step, *arguments = sys.argv[1:]
    if mode == "absent":
        join_without(failing_rank)
    if mode in ("hang", "hang in data", "freeze"):
        wait_for_saves()
    if os.environ["RANK"] == failing_rank:
        if mode == "absent":
            os._exit(0)
        if mode.startswith(UNREADABLE):
            fail_to_open(mode.removeprefix(UNREADABLE))
        if mode == "hang in data":
            stand_still_before_batch(int(at_step))
        fail_before_step(mode, int(at_step))
    # The wait ends when all ranks but the lost one have a record, which may take one of them seconds on a busy machine.
    outcome._RECORD_TIMEOUT_S = 60.0
    # No launcher ends the other ranks of a refused start.
    program.RANK_0_TIMEOUT_S = 0.5
    status = program.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
