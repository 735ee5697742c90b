"""How fast the trainer's checkpoints reach a folder and come back."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from simulator.calibrate.ranks import Ranks
from trainer.checkpoint.checkpoints import Checkpoints

BYTES = {"cpu": 2**25, "cuda": 2**31}
"""Of one rank."""
TIMES = 2


class SaveError(Exception):
    """A checkpoint could not be written; the message says why."""


def saves(ranks: Ranks, folder: Path) -> dict[str, float]:
    """GB/s of all ranks together: while training waits, from the call to the published checkpoint, and back again."""
    world = ranks.world
    store = Checkpoints(folder, rank=world.rank, world_size=world.size, group=world.group, keep=1)
    size = BYTES[ranks.device.type]
    tensors = {f"rank-{world.rank}": torch.rand(size // 4, device=ranks.device)}
    store.prepare(tensors)
    wrote = [_write(ranks, store, tensors, step) for step in range(1, TIMES + 1)]
    newest = store.newest()
    if newest is None:
        raise SaveError(f"--out: {folder} has no checkpoint after a save; allowed: a folder to write; name another")
    read = [ranks.timed(lambda: store.load(newest, tensors), 1) for _ in range(TIMES)]
    store.close()
    waited, written = (min(times) for times in zip(*wrote, strict=True))
    took = {"wait_gb_s": waited, "write_gb_s": written, "read_gb_s": min(read)}
    return {name: 1e-9 * world.size * size / max(ranks.all(seconds)) for name, seconds in took.items()}


def _write(ranks: Ranks, store: Checkpoints, tensors: dict[str, torch.Tensor], step: int) -> tuple[float, float]:
    """Seconds until training may go on, and until the checkpoint is there."""
    ranks.meet()
    began = time.perf_counter()
    store.save(step, tensors, {"step": step})
    waited = time.perf_counter() - began
    store.wait()
    took = time.perf_counter() - began
    failed = [event.message for event in store.poll() if event.kind == "failed"]
    if failed:
        raise SaveError(failed[0])
    return waited, took
