"""Measure collectives by size, inside a node and over all ranks, and how much they slow concurrent work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from simulator.calibrate.ranks import Ranks
from trainer import bandwidth

OPS = ("all_reduce", "all_gather")
NODE, ALL = "node", "all"


def measure_collectives(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the seconds of each collective; `size` is the whole array in bytes, as nccl-tests count it.

    `per_node` is the number of ranks of a group that share a node.
    """
    if ranks.world.size == 1:
        return []
    rows = []
    for scope, group, size in _groups(ranks):
        per_node = min(size, ranks.world.local_size) if scope == ALL else size
        for op in OPS:
            for array in _sizes(ranks):
                seconds = ranks.time_together(_build_call(op, array, size, group, ranks))
                rows.append({"op": op, "ranks": size, "per_node": per_node, "size": array, "seconds": seconds})
    return rows


def measure_slowdown(ranks: Ranks) -> float | None:
    """Return the seconds that one second of all-reduce takes from concurrent products; None for a single rank."""
    if ranks.world.size == 1:
        return None
    width, array = (4096, 2**28) if ranks.device.type == "cuda" else (256, 2**22)
    left = torch.rand(width, width, device=ranks.device)
    out = torch.empty_like(left)
    tensor = torch.zeros(array // 4, device=ranks.device)

    def reduce() -> None:
        dist.all_reduce(tensor)

    sent = ranks.time_together(reduce)
    rounds = max(4, round(2 * sent / ranks.time_alone(lambda: torch.mm(left, left, out=out))))

    def work() -> None:
        for _ in range(rounds):
            torch.mm(left, left, out=out)

    def both() -> None:
        pending = dist.all_reduce(tensor, async_op=True)
        work()
        pending.wait()

    return max(0.0, min(1.0, (ranks.time_together(both) - ranks.time_together(work)) / sent))


def _groups(ranks: Ranks) -> list[tuple[str, Any, int]]:
    world = ranks.world
    scopes: list[tuple[str, Any, int]] = [(ALL, None, world.size)]
    if 1 < world.local_size < world.size:
        starts = range(0, world.size, world.local_size)
        groups = [dist.new_group(list(range(start, start + world.local_size))) for start in starts]
        scopes.append((NODE, groups[world.rank // world.local_size], world.local_size))
    return scopes


def _sizes(ranks: Ranks) -> tuple[int, ...]:
    return bandwidth.SIZES + bandwidth.LARGE[:1] if ranks.device.type == "cuda" else bandwidth.SIZES[:-1]


def _build_call(op: str, array: int, members: int, group: Any, ranks: Ranks) -> Callable[[], object]:
    part = max(1, array // 4 // members)
    whole = torch.zeros(part * members if op == "all_gather" else array // 4, device=ranks.device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    mine = torch.zeros(part, device=ranks.device)
    return lambda: dist.all_gather_into_tensor(whole, mine, group=group)
