"""How much memory a rank may still take: of its GPU, or of the host within the limits that Slurm set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.world import World

_MEMINFO = Path("/proc/meminfo")


def least_free(world: World) -> int:
    """Free bytes of the fullest rank: the same number on every rank."""
    free = torch.tensor(free_bytes(world), dtype=torch.int64)
    if world.group is not None:
        dist.all_reduce(free, dist.ReduceOp.MIN, group=world.group)
    return int(free)


def free_bytes(world: World) -> int:
    if world.device.type == "cuda":
        return int(torch.cuda.mem_get_info(world.device)[0])
    return min([_available(), *_cgroup_limits()]) // world.local_size


def _available() -> int:
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_limits() -> Iterable[int]:
    """What is left of this process's own memory limits: Slurm gives a job less than the node has."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            yield from _left(root / path.lstrip("/"), "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit: str, used: str) -> Iterable[int]:
    for place in [folder, *folder.parents]:
        if not (place / limit).exists():
            continue
        text = (place / limit).read_text().strip()
        if text.isdigit():
            yield max(int(text) - int((place / used).read_text()) + _reclaimable(place), 0)


def _reclaimable(place: Path) -> int:
    """Files read long ago count as used until somebody needs the room: the kernel drops them first."""
    fields = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    return int(fields.get("total_inactive_file", fields["inactive_file"]))
