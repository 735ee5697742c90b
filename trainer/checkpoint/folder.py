"""The folder of a run's checkpoints: file names, publishing by rename, leftovers. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainer.checkpoint.fence import Fence

CHECKPOINTS_FOLDER = "checkpoints"
"""Name of the folder of checkpoints in the folder of a run."""
INDEX, STATE, MANIFEST = "index.json", "state.json", "manifest.json"
_UNFENCED = Fence()
PARTIAL, REMOVED, SUSPECT = ".partial", ".removed", ".suspect"
_EPOCH = re.compile(r"step-\d+\.e(\d+)-.*")
_PUBLISHED = re.compile(r"step-(\d{8,})(?:\.r(\d+))?")


@dataclass(frozen=True, order=True)
class PublishedCheckpoint:
    """A folder whose name says that it holds a complete checkpoint; ordered by step and revision."""

    step: int
    revision: int
    path: Path = field(compare=False)


def list_published(folder: Path) -> list[PublishedCheckpoint]:
    """Return the checkpoints that are complete according to their names, newest first.

    A folder is renamed to such a name only after everything in it is written.
    """
    checkpoints = []
    for path in _list_entries(folder):
        match = _PUBLISHED.fullmatch(path.name)
        if match:
            checkpoints.append(PublishedCheckpoint(int(match[1]), int(match[2] or 0), path))
    return sorted(checkpoints, reverse=True)


def partial_path(folder: Path, step: int, token: str) -> Path:
    """Return the folder in which a save collects its files; the token keeps it apart from other saves of the step.

    A token that begins with "e7-" names the epoch of its owner.
    """
    return folder / f"step-{step:08d}.{token}{PARTIAL}"


def shard_name(rank: int) -> str:
    """Return the name of the file with a rank's tensors."""
    return f"shard-{rank:05d}.safetensors"


def index_part_name(rank: int) -> str:
    """Return the name of the file with a rank's part of an index that is too long for one file."""
    return f"index-{rank:05d}.json"


def own_name(rank: int) -> str:
    """Return the name of the file with the state that only this rank needs."""
    return f"rank-{rank:05d}.json"


def remove_leftovers(folder: Path, keep: str = "", epoch: int = 0) -> None:
    """Remove what unfinished saves and unfinished removals left, except the entry named `keep`.

    Saves of later owners than `epoch` are not touched. Those of earlier ones get another name before anything else: an
    old owner that is about to publish one cannot do so any more, and never publishes half of it.
    """
    for path in _list_entries(folder):
        if path.name.endswith(PARTIAL) and path.name != keep and _read_epoch(path.name) <= epoch:
            with suppress(OSError):
                remove(path)
        elif path.name.endswith(REMOVED):
            shutil.rmtree(path, ignore_errors=True)


def publish_partial(folder: Path, partial: Path, step: int, fence: Fence) -> Path:
    """Give a finished save its final name; if the step exists already, one of the two is visible at any time."""
    final = folder / f"step-{step:08d}"
    earlier = [checkpoint for checkpoint in list_published(folder) if checkpoint.step == step]
    fence.check()
    if not earlier:
        os.rename(partial, final)
        sync_folder(folder)
        return final
    newer = folder / f"{final.name}.r{earlier[0].revision + 1}"
    os.rename(partial, newer)
    sync_folder(folder)
    for checkpoint in earlier:
        remove(checkpoint.path, fence)
    fence.check()
    os.rename(newer, final)
    sync_folder(folder)
    return final


def remove(path: Path, fence: Fence = _UNFENCED) -> None:
    """Remove a checkpoint; it is renamed first, so that a half-deleted one is never taken for a complete one."""
    removed = path.with_name(path.name + REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    fence.check()
    os.rename(path, removed)
    sync_folder(path.parent)
    shutil.rmtree(removed, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, flush it to the disk, and only then give it its name."""
    unfinished = path.with_name(path.name + ".new")
    with open(unfinished, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_epoch(name: str) -> int:
    match = _EPOCH.fullmatch(name)
    return int(match[1]) if match else 0


def _list_entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
