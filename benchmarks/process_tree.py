"""Measure how long work runs and the peak memory of all processes that it starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_PAGE_KB = 4


@dataclass(frozen=True)
class ResourceUsage:
    """Duration of some work, and peak memory of its processes."""

    seconds: float
    peak_mb: float


def measure_usage(work: Callable[[], object]) -> ResourceUsage:
    """Do the work and measure all processes started meanwhile, without this one."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            peak[0] = max(peak[0], sum(map(_resident_kb, descendants(own))))

    own = int(Path("/proc/self").readlink().name)
    watcher = threading.Thread(target=watch)
    began = time.monotonic()
    watcher.start()
    try:
        work()
    finally:
        seconds = time.monotonic() - began
        done.set()
        watcher.join()
    return ResourceUsage(seconds, peak[0] / 1024)


def descendants(root: int) -> Iterator[int]:
    """Yield the process ids of all children of a process and of their children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    waiting = children.get(root, [])
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _parent(folder: Path) -> int | None:
    try:
        # The name of a program is in brackets and may contain blanks.
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _resident_kb(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_KB
    except OSError:
        return 0
