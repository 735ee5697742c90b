"""The folder of a run's checkpoints on disk: names, what is published, what is left over. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

OF_RUN = "checkpoints"  # the name of the folder in that of its run
INDEX, STATE, MANIFEST = "index.json", "state.json", "manifest.json"
PARTIAL, REMOVED = ".partial", ".removed"
_PUBLISHED = re.compile(r"step-(\d{8,})(?:\.r(\d+))?")


@dataclass(frozen=True, order=True)
class Published:
    step: int
    revision: int
    path: Path = field(compare=False)


def published(folder: Path) -> list[Published]:
    """What is whole by its name, newest first. Only a rename gives such a name."""
    found = []
    for path in _entries(folder):
        match = _PUBLISHED.fullmatch(path.name)
        if match:
            found.append(Published(int(match[1]), int(match[2] or 0), path))
    return sorted(found, reverse=True)


def step_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def partial_path(folder: Path, step: int, token: str) -> Path:
    """Where a save collects its files. The token is new for every save: a writer of another one cannot meddle."""
    return folder / f"step-{step:08d}.{token}{PARTIAL}"


def shard_name(rank: int) -> str:
    return f"shard-{rank:05d}.safetensors"


def own_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def sweep(folder: Path, spare: str = "") -> None:
    """Remove what unfinished saves and unfinished removals left, except the partial named."""
    for path in _entries(folder):
        if path.name.endswith((PARTIAL, REMOVED)) and path.name != spare:
            shutil.rmtree(path, ignore_errors=True)


def put(folder: Path, partial: Path, step: int) -> Path:
    """Give a finished partial its name. Where that step is there already, one of both is visible at every instant."""
    final = step_path(folder, step)
    before = [old for old in published(folder) if old.step == step]
    if not before:
        os.rename(partial, final)
        sync(folder)
        return final
    newer = folder / f"{final.name}.r{before[0].revision + 1}"
    os.rename(partial, newer)
    sync(folder)
    for old in before:
        remove(old.path)
    os.rename(newer, final)
    sync(folder)
    return final


def remove(path: Path) -> None:
    """The name goes first, in one move: a half-deleted checkpoint is never taken for a whole one."""
    gone = path.with_name(path.name + REMOVED)
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    sync(path.parent)
    shutil.rmtree(gone, ignore_errors=True)


def write(path: Path, content: bytes) -> None:
    """Write, flush to the disk, and only then give the file its name."""
    unfinished = path.with_name(path.name + ".new")
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)


def sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
