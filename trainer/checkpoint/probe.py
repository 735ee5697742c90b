"""Estimate how long a save takes before the first one, by writing a part of it where it will be."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.shard import write_shard

# A second, larger part is written only if the first one was too fast to measure the rate.
_PART_BYTES = (4 << 20, 64 << 20)
_ENOUGH_S = 0.25
_RANDOM_BYTES = 1 << 20


def estimate_save_s(path: Path, size: int, group: RankGroup) -> float:
    """Return the seconds in which all ranks together write `size` bytes, each an equal share, to a folder.

    All ranks write at the same time, as in a save, and the slowest one decides. The result is 0 if nothing can be
    written: the save itself reports that.
    """
    share = -(-size // group.world_size)
    try:
        seconds = _estimate_write_s(path / f"probe-{group.rank:05d}", share)
    except OSError:
        seconds = 0.0
    return max(group.gather(seconds))


def _estimate_write_s(probe: Path, share: int) -> float:
    part, seconds = 0, 0.0
    try:
        for largest in _PART_BYTES:
            if seconds < _ENOUGH_S and part < share:
                part = min(share, largest)
                seconds = _time_write(probe, part)
    finally:
        probe.unlink(missing_ok=True)
    return seconds * share / max(part, 1)


def _time_write(path: Path, size: int) -> float:
    # Direct writes need whole pages, which mmap returns. Random bytes cannot be compressed by the filesystem.
    image = mmap.mmap(-1, size)
    pattern = os.urandom(min(size, _RANDOM_BYTES))
    for start in range(0, size, _RANDOM_BYTES):
        end = min(size, start + _RANDOM_BYTES)
        image[start:end] = pattern[: end - start]
    began = time.monotonic()
    write_shard(path, memoryview(image))
    return time.monotonic() - began
