"""A rank for the tests of the watchdog: makes steps with the others, and misbehaves in a given way.

torchrun ... -m tests.trainer.hang_rank FOLDER HANG_S MODE       MODE acts on rank 1 at step 8
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.life.stop import StopListener
from trainer.life.watchdog import Watchdog
from trainer.world import start

STEPS, WRONG_STEP, STEP_S = 12, 8, 0.02


def main() -> int:
    folder, hang_s, mode = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    world = start("cpu", 60)
    stop = StopListener(folder, world.rank).listen()
    watchdog = Watchdog(world, folder, hang_s, lambda: stop.is_terminated).start()
    for step in range(1, STEPS + 1):
        is_wrong = world.rank == world.size - 1 and step == WRONG_STEP
        is_slow = is_wrong and mode == "slow"
        watchdog.beat(step, "data", limit_s=60 if is_slow else None)
        time.sleep(hang_s + 2 if is_slow else STEP_S)
        if is_wrong:
            (folder / "wrong").touch()
            misbehave(mode)
        watchdog.beat(step, "compute")
        dist.all_reduce(torch.ones(1))
        if mode == "save and sleep":
            watchdog.beat(step, "save", limit_s=60)
    if mode == "slow":
        watchdog.beat(STEPS, "save", limit_s=60)
        time.sleep(hang_s + 2)
    watchdog.close()
    stop.close()
    world.close()
    return 0


def misbehave(mode: str) -> None:
    if mode in ("sleep", "save and sleep"):
        time.sleep(600)
    if mode == "lock":
        # A call into C that holds the interpreter's lock: no Python thread can run.
        ctypes.PyDLL(None).sleep(600)
    if mode == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    sys.exit(main())
