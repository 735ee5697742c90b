"""Pulumi's event log as a pipe: its debug events hold secrets in plain text, so they never reach a disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_CHUNK = 65536


class EventPipe:
    """A named pipe that Pulumi takes for a file. Drain it often: Pulumi waits while it is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = bytearray()

    def __enter__(self) -> EventPipe:
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path, 0o600)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._reader)
        self.path.unlink(missing_ok=True)

    def drain(self) -> None:
        while chunk := self._read():
            self._data += chunk

    def lines(self) -> list[str]:
        self.drain()
        return self._data.decode(errors="replace").splitlines()

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return b""
