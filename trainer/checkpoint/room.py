"""Is there room for a checkpoint, on the disk and in memory to stage it? Asked before any GPU time is used."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import host_memory
from trainer.checkpoint import folder
from trainer.checkpoint.group import Group
from trainer.config.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    import torch


def check(path: Path, size: int, group: Group) -> None:
    """Raise on every rank what is wrong on any; `size` is the bytes of one checkpoint, of all ranks together."""
    texts = dict.fromkeys(text for text in group.all(_problem(path, size, group.rank)) if text)
    if texts:
        fix = "choose another run.folder, or make room and rights there"
        raise ConfigError([ConfigProblem("run.folder", text, fix) for text in texts])


def check_memory(size: int, group: Group) -> None:
    """A save is staged in memory of the hosts, about as much of it by each rank."""
    every = group.all((socket.gethostname(), host_memory.available()))
    problems = []
    for host in sorted({host for host, _ in every}):
        free = [left for name, left in every if name == host]
        needed = -(-size * len(free) // group.world_size)
        if needed > min(free):
            message = f"staging a save takes {text(needed)} of memory on {host}, which has {text(min(free))} left"
            fix = "give the job more memory (sbatch --mem=0 is all of a node's), or spread it over more nodes"
            problems.append(ConfigProblem("checkpoint", message, fix))
    if problems:
        raise ConfigError(problems)


def size_of(tensors: Mapping[str, torch.Tensor], group: Group) -> int:
    """Bytes of a checkpoint of these tensors: those that several ranks hold count once."""
    mine = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}

    def total(sizes: list[dict[str, int]]) -> list[int]:
        return [sum({name: size for some in sizes for name, size in some.items()}.values())] * group.world_size

    return group.through_first(mine, total)


def text(size: int) -> str:
    """A number of bytes for a reader."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004 - where GB begin


def _problem(path: Path, size: int, rank: int) -> str:
    probe = path / f"probe-{rank:05d}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder.write(probe, b"writable")
        probe.unlink()
        space = os.statvfs(path)
    except OSError as error:
        return f"{path} cannot be written on {socket.gethostname()}: {error.strerror}"
    free = space.f_bavail * space.f_frsize
    if free >= size:
        return ""
    return f"{path} has {text(free)} free and one checkpoint takes {text(size)}"
