"""The signals of a pod: SIGTERM from Kubernetes, and the warning of its ranks, which are the children of torchrun."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path


class TermListener:
    """Records SIGTERM, which Kubernetes sends before it ends a pod: eviction, preemption, drain or deletion."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen(self) -> TermListener:
        """Start listening and return self."""
        signal.signal(signal.SIGTERM, lambda *_: self._event.set())
        return self

    @property
    def is_terminated(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for SIGTERM and return whether it has arrived."""
        return self._event.wait(seconds)


def warn_ranks(torchrun: int) -> None:
    """Send the ranks of this pod the signal that makes all ranks of the job save.

    On NFS, the first rank may see a file that another node wrote only after a minute. The signal would kill a rank that
    does not catch it yet.
    """
    for pid in list_children(torchrun):
        with suppress(OSError, IndexError, ValueError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            caught = int(status.partition("\nSigCgt:")[2].split()[0], 16)
            if caught >> (signal.SIGUSR1 - 1) & 1:
                os.kill(pid, signal.SIGUSR1)


def list_children(parent: int) -> list[int]:
    """Return the child processes that have not ended."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent_pid = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if int(parent_pid) == parent and state != "Z":
                children.append(int(stat.parent.name))
    return children
