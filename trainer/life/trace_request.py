"""Requests for a trace of a running job: a file `profile` in the run's folder, as with `stop`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "profile"
MAX_STEPS = 10
_POLL_S = 1.0


@dataclass(frozen=True)
class TraceRequest:
    """The number of steps to trace, and of ranks, from rank 0 on, that write a trace."""

    steps: int
    ranks: int = 1


def write_request(folder: Path, request: TraceRequest) -> None:
    """Ask the run in this folder for a trace."""
    temporary = folder / f".{FILE_NAME}.{os.getpid()}"
    temporary.write_text(f"{request.steps} {request.ranks}\n", encoding="ascii")
    temporary.replace(folder / FILE_NAME)


def parse_request(text: str) -> TraceRequest | None:
    """Return the request that a file contains: a number of steps, and perhaps a number of ranks; None if invalid."""
    try:
        request = TraceRequest(*(int(number) for number in text.split()))
    except (TypeError, ValueError):
        return None
    return request if 1 <= request.steps <= MAX_STEPS and request.ranks >= 1 else None


class TraceRequests:
    """A thread of rank 0 that waits for the file, so that no step waits for the filesystem.

    The vote informs the other ranks, and all of them trace the same steps.
    """

    def __init__(self, folder: Path, rank: int, say: Callable[[str], None]) -> None:
        self._file = folder / FILE_NAME
        self._say = say
        self._request: TraceRequest | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trace requests", daemon=True)
        if rank == 0:
            self._thread.start()

    def take(self) -> TraceRequest | None:
        """Return a new request, only once."""
        request, self._request = self._request, None
        return request

    def close(self) -> None:
        """Stop waiting for requests."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_POLL_S):
            with suppress(OSError):
                text = self._file.read_text(encoding="utf-8", errors="replace").strip()
                # Deleted first: a file that cannot be deleted would be read again and again.
                self._file.unlink()
                self._request = parse_request(text)
                if self._request is None:
                    self._say(f"{self._file}: {text[:80]!r} is not a number of steps; use 1 to {MAX_STEPS}")
