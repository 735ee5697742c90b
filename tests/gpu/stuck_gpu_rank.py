"""A rank whose GPU hangs: the host waits for an NCCL collective that is queued behind a kernel that does not end.

RANK=0 WORLD_SIZE=1 ... python -m tests.gpu.stuck_gpu_rank FOLDER HANG_S
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.life.watchdog import Watchdog
from trainer.world import start

STEPS, STUCK_STEP = 12, 8
# About an hour of a GPU's cycles; the driver ends the kernel with the process.
ENDLESS_CYCLES = 10**13


def main() -> None:
    folder, hang_s = Path(sys.argv[1]), float(sys.argv[2])
    world = start("cuda", 60, hang_folder=folder / "hang")
    watchdog = Watchdog(world, folder, hang_s).start()
    for step in range(1, STEPS + 1):
        watchdog.beat(step, "step")
        if step == STUCK_STEP:
            torch.cuda._sleep(ENDLESS_CYCLES)
        dist.all_reduce(torch.ones(1 << 20, device=world.device))
        wait_for_gpu()
    watchdog.close()


def wait_for_gpu() -> None:
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
