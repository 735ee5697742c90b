"""Measure how fast the trainer's checkpoints are written to a folder and read back."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from simulator.calibrate.ranks import Ranks
from trainer.checkpoint.checkpoints import Checkpoints

BYTES_PER_RANK = {"cpu": 2**25, "cuda": 2**31}
TRIES = 2


class SaveError(Exception):
    """A checkpoint could not be written; the message says why."""


def measure_saves(ranks: Ranks, folder: Path) -> dict[str, float]:
    """Return GB/s of all ranks together: while training waits, until the checkpoint is published, and of loading."""
    world = ranks.world
    store = Checkpoints(folder, rank=world.rank, world_size=world.size, group=world.group, keep=1)
    size = BYTES_PER_RANK[ranks.device.type]
    tensors = {f"rank-{world.rank}": torch.rand(size // 4, device=ranks.device)}
    store.prepare(tensors)
    wrote = [_write(ranks, store, tensors, step) for step in range(1, TRIES + 1)]
    newest = store.newest()
    if newest is None:
        raise SaveError(
            f"--out: {folder} has no checkpoint after a save; allowed: a writable folder; name another file"
        )
    read = [ranks.timed(lambda: store.load(newest, tensors), 1) for _ in range(TRIES)]
    store.close()
    waited, written = (min(times) for times in zip(*wrote, strict=True))
    took = {"wait_gb_s": waited, "write_gb_s": written, "read_gb_s": min(read)}
    return {name: 1e-9 * world.size * size / max(ranks.all(seconds)) for name, seconds in took.items()}


def _write(ranks: Ranks, store: Checkpoints, tensors: dict[str, torch.Tensor], step: int) -> tuple[float, float]:
    """Return the seconds until training may continue, and until the checkpoint is published."""
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
