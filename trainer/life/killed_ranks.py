"""Name ranks that the kernel kills because their job's memory is used up; they cannot write a record themselves.

This runs in the process that starts the ranks of a node, which has the same control group. Imports no torch.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.host import list_memory_groups
from trainer.life.cause import Cause
from trainer.life.failure import Failure, name_attempt, read_failures, record
from trainer.life.outcome import write_if_missing

_POLL_S = 0.5
# A killed rank is gone a moment after the kernel has counted it. If none is, another process was killed.
_BLAME_S = 10.0
_GIB = 2**30
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Limits above this are the kernel's way to write that there is none (cgroup v1).
_NO_LIMIT = 2**60


@dataclass(frozen=True)
class MemoryGroup:
    """The control group of a process: how many of its processes were killed, and the tightest limit above them."""

    kills: int
    limit: int | None
    peak: int | None
    """The most memory that was in use under that limit at once, in bytes."""


@dataclass(frozen=True)
class RankProcess:
    """A rank on this node."""

    rank: int
    attempt: str
    used: int
    """Bytes of memory that it had when it was last seen."""


class KilledRanks:
    """A thread that records each rank which disappears while the kernel counts a kill for lack of memory."""

    def __init__(
        self, folder: Path, process: Path = Path("/proc/self"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._process = process
        self._clock = clock
        self._began = time.time()
        self._kills = self._counted = read_memory_group(process).kills
        """The kills that are explained, and those that were counted at the last call."""
        self._counted_at = 0.0
        self._ranks: dict[int, RankProcess] = {}
        self._last: Failure | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="killed ranks", daemon=True)

    def __enter__(self) -> KilledRanks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        with suppress(OSError):
            self.check()
        if self._last is not None:
            write_if_missing(self._last)

    def check(self) -> None:
        """Record a rank that has gone without a word soon after the kernel has killed a process."""
        # The ranks first: one that is killed in between is gone at the next call, when the kill is still unexplained.
        present = find_ranks(os.getpid())
        group = read_memory_group(self._process)
        if group.kills <= self._kills:
            self._ranks = present
        else:
            self._explain(group, present)
        if self._last is not None and any(rank.attempt != self._last.attempt for rank in present.values()):
            # The ranks were started again, and may end for another reason.
            self._last = None

    def _explain(self, group: MemoryGroup, present: dict[int, RankProcess]) -> None:
        """Record the rank that was killed, if one has gone; after a while without one, another process was killed."""
        if group.kills != self._counted:
            self._counted, self._counted_at = group.kills, self._clock()
        self._ranks = {**self._ranks, **present}
        gone = [rank for pid, rank in self._ranks.items() if pid not in present and not self._has_record(rank)]
        if gone:
            # If others have ended since, because they lost their peer, the one with the most memory was killed.
            self._report(max(gone, key=lambda rank: rank.used), group)
        if gone or self._clock() > self._counted_at + _BLAME_S:
            self._kills, self._ranks = group.kills, present

    def _has_record(self, rank: RankProcess) -> bool:
        """Return whether a rank has recorded a failure of its own, which one that is killed cannot."""
        failures = read_failures(self._folder, rank.rank)
        return any(failure.attempt == rank.attempt and failure.time >= self._began for failure in failures)

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S):
            with suppress(OSError):
                self.check()

    def _report(self, killed: RankProcess, group: MemoryGroup) -> None:
        self._last = failure = Failure(
            time=round(time.time(), 3),
            attempt=killed.attempt,
            rank=killed.rank,
            host=socket.gethostname(),
            step=_read_step(self._folder),
            cause=Cause.HOST_MEMORY,
            error=describe_kill(killed, group),
        )
        print(f"trainer: FAILED on {failure}", file=sys.stderr, flush=True)
        record(self._folder, failure)


def _read_step(folder: Path) -> int:
    """Return the last step in the run's progress, which is at most a second old; 0 if there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / "progress.json").read_text())["step"])
    return 0


def describe_kill(killed: RankProcess, group: MemoryGroup) -> str:
    """Return what happened to a rank, with the memory it used and the limit."""
    used = f"killed by the kernel with {killed.used / _GIB:.2f} GiB in use"
    if group.limit is None:
        return f"{used}: the node has no more memory"
    peak = "" if group.peak is None else f", of which {group.peak / _GIB:.2f} GiB were used at once"
    return f"{used}: all processes of the job on this node may use {group.limit / _GIB:.2f} GiB{peak}"


def find_ranks(launcher: int) -> dict[int, RankProcess]:
    """Return the ranks that a process has started, by process id."""
    ranks = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, KeyError, ValueError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) != launcher:
                continue
            lines = (path / "environ").read_bytes().split(b"\0")
            variables = dict(line.decode(errors="replace").partition("=")[::2] for line in lines)
            used = int((path / "statm").read_text().split()[1]) * _PAGE_BYTES
            if used:  # a process that has ended has no memory
                ranks[int(path.name)] = RankProcess(int(variables["RANK"]), name_attempt(variables), used)
    return ranks


def read_memory_group(process: Path) -> MemoryGroup:
    """Return what the kernel counts for the control group of a process, given its folder in /proc."""
    groups = list_memory_groups((process / "cgroup").read_text(), (process / "mountinfo").read_text())
    limits = [(limit, folder) for folder in groups if (limit := _read_limit(folder)) is not None]
    limit, folder = min(limits, default=(None, None))
    peak = None if folder is None else _read_number(folder, "memory.peak", "memory.max_usage_in_bytes")
    return MemoryGroup(next(_read_kills(groups), 0), limit, peak)


def _read_kills(groups: list[Path]) -> Iterator[int]:
    """Yield the kills of each group that counts them, the innermost first; outer groups may count those of others."""
    for folder in groups:
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError, KeyError):
                yield int(dict(line.split() for line in (folder / name).read_text().splitlines())["oom_kill"])


def _read_limit(folder: Path) -> int | None:
    limit = _read_number(folder, "memory.max", "memory.limit_in_bytes")
    return None if limit is None or limit > _NO_LIMIT else limit


def _read_number(folder: Path, *names: str) -> int | None:
    for name in names:
        with suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return None
