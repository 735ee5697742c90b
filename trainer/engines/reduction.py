"""The one place where engines average gradients over ranks, and so the place for another way of doing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


def start_average(values: torch.Tensor, group: Any, sent_dtype: torch.dtype) -> Callable[[], None]:
    """Start to replace values by their average over the ranks of a group; return the function that waits for it.

    Each rank divides its own values before the sum, as torch's DDP does: a sum of many ranks could overflow. The
    backend decides the order of the sum. It depends on the ranks and on the position of a value, not on time, and the
    result has the same bits on all ranks. In a short format, values are rounded before and after the sum.

    On a GPU, the returned function makes the current stream wait, not the host.
    """
    if group is None:
        return _do_nothing
    sent = values.to(sent_dtype)
    sent.div_(dist.get_world_size(group))
    work = dist.all_reduce(sent, group=group, async_op=True)

    def finish() -> None:
        work.wait()
        if sent is not values:
            values.copy_(sent)

    return finish


def _do_nothing() -> None:
    pass
