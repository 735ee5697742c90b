"""A rank for the tests of the watchdog: makes steps with the others, and misbehaves in a given way.

torchrun ... -m tests.trainer.hang_rank FOLDER HANG_S MODE       MODE acts on the last rank at step 8

The limit HANG_S holds only where it decides: on a busy machine, ranks may wait for each other for seconds in any step.
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
LONG_S = 600.0


def main() -> int:
    folder, hang_s, mode = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    world = start("cpu", 60)
    stop = StopListener(folder, world.rank).listen()
    watchdog = Watchdog(world, folder, LONG_S, lambda: stop.is_terminated).start()
    for step in range(1, STEPS + 1):
        is_wrong = world.rank == world.size - 1 and step == WRONG_STEP
        is_slow = is_wrong and mode == "slow"
        if step == WRONG_STEP and not is_slow:
            set_limit(watchdog, hang_s)
        watchdog.beat(step, "data", limit_s=LONG_S if is_slow else None)
        time.sleep(hang_s + 1 if is_slow else STEP_S)
        if is_wrong:
            (folder / "wrong").touch()
            misbehave(mode)
        watchdog.beat(step, "compute")
        dist.all_reduce(torch.ones(1))
        if step == WRONG_STEP:
            set_limit(watchdog, LONG_S)
        if mode == "save and sleep":
            watchdog.beat(step, "save", limit_s=LONG_S)
    if mode == "slow":
        set_limit(watchdog, hang_s)
        watchdog.beat(STEPS, "save", limit_s=LONG_S)
        time.sleep(hang_s + 1)
    watchdog.close()
    stop.close()
    world.close()
    return 0


def set_limit(watchdog: Watchdog, hang_s: float) -> None:
    watchdog._hang_limit._hang_s = hang_s
    watchdog._arm_timer()


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
