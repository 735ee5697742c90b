"""How much memory a rank may still take: of its GPU, or of the host within the limits that Slurm set."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trainer import host_memory
from trainer.world import World


def least_free(world: World) -> int:
    """Free bytes of the fullest rank: the same number on every rank."""
    free = torch.tensor(free_bytes(world), dtype=torch.int64)
    if world.group is not None:
        dist.all_reduce(free, dist.ReduceOp.MIN, group=world.group)
    return int(free)


def free_bytes(world: World) -> int:
    if world.device.type == "cuda":
        return int(torch.cuda.mem_get_info(world.device)[0])
    return host_memory.available() // world.local_size
