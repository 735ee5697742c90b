"""Check before the first step that a checkpoint fits on the disk, and into memory while it is staged."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import host
from trainer.checkpoint import folder
from trainer.checkpoint.group import RankGroup
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.life.cause import is_pod

if TYPE_CHECKING:
    import torch

_GB = 1e9
_MEMORY_FIX = "give the job more memory (sbatch --mem=0 requests all memory of a node), or spread it over more nodes"
_MEMORY_FIX_IN_PODS = "give each pod more memory (muster kubernetes apply --memory), or use more pods (--nodes)"


def check_disk(path: Path, size: int, group: RankGroup) -> None:
    """Raise ConfigError on every rank if any rank cannot write `size` bytes, one checkpoint of all ranks, to `path`."""
    problems = dict.fromkeys(problem for problem in group.gather(_check_folder(path, size, group.rank)) if problem)
    if problems:
        fix = "use another run.folder, or free space and grant write access there"
        raise ConfigError([ConfigProblem("run.folder", problem, fix) for problem in problems])


def check_memory(size: int, group: RankGroup) -> None:
    """Raise ConfigError if a host has too little memory for its ranks to stage their parts of `size` bytes."""
    available = group.gather((socket.gethostname(), host.available_memory()))
    problems = []
    for hostname in sorted({name for name, _ in available}):
        free = [size_here for name, size_here in available if name == hostname]
        needed = -(-size * len(free) // group.world_size)
        if needed > min(free):
            message = f"staging a save needs {format_size(needed)} of memory on {hostname}, "
            message += f"which has {format_size(min(free))} available"
            problems.append(ConfigProblem("checkpoint", message, _MEMORY_FIX_IN_PODS if is_pod() else _MEMORY_FIX))
    if problems:
        raise ConfigError(problems)


def compute_checkpoint_size(tensors: Mapping[str, torch.Tensor], group: RankGroup) -> int:
    """Return the size in bytes of a checkpoint of all ranks' tensors; tensors that several ranks hold count once."""
    sizes_here = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}

    def add_up(sizes: list[dict[str, int]]) -> list[int]:
        by_name = {name: size for sizes_of_rank in sizes for name, size in sizes_of_rank.items()}
        return [sum(by_name.values())] * group.world_size

    return group.decide_on_first(sizes_here, add_up)


def format_size(size: int) -> str:
    """Return a number of bytes in MB or GB."""
    return f"{size / _GB:.1f} GB" if size >= _GB else f"{size / 1e6:.1f} MB"


def _check_folder(path: Path, size: int, rank: int) -> str:
    probe = path / f"probe-{rank:05d}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder.write_file(probe, b"writable")
        probe.unlink()
        space = os.statvfs(path)
    except OSError as error:
        return f"{path} cannot be written on {socket.gethostname()}: {error.strerror}"
    free = space.f_bavail * space.f_frsize
    if free >= size:
        return ""
    return f"{path} has {format_size(free)} free and one checkpoint needs {format_size(size)}"
