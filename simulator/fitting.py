"""Whether what a rank needs is there: on a GPU, or in its share of a host's memory."""

from __future__ import annotations

from simulator.memory import Memory


def fits(needed: Memory, is_gpu: bool) -> bool:
    """What CUDA takes beside the allocator does not count where there is none."""
    return needed.fits if is_gpu else needed.total <= needed.room
