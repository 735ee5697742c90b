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
    """GB/s of all ranks together: from the call to the published checkpoint, and from its folder into memory."""
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
    total = world.size * size / 1e9
    return {"write_gb_s": total / max(ranks.all(min(wrote))), "read_gb_s": total / max(ranks.all(min(read)))}


def _write(ranks: Ranks, store: Checkpoints, tensors: dict[str, torch.Tensor], step: int) -> float:
    ranks.meet()
    began = time.perf_counter()
    store.save(step, tensors, {"step": step})
    store.wait()
    took = time.perf_counter() - began
    failed = [event.message for event in store.poll() if event.kind == "failed"]
    if failed:
        raise SaveError(failed[0])
    return took
