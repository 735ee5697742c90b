"""Pulumi's event log: the pipe that receives it, and what changed or failed according to it.

The log is a pipe because Pulumi's debug events hold secrets in plain text, which must not reach a disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_CHUNK_BYTES = 65536
_UNCHANGED = frozenset({"same", "read", "refresh"})
_NOISE = (
    re.compile(r"^(error: )?Exception calling application: "),
    re.compile(r"^(error: )?\S+ resource '[^']*' has a problem: "),
    re.compile(r"^resource \S+ property value \S+ has a problem: "),
)
_EMPTY = re.compile(
    r"^(update|preview|refresh|destroy|resource registration|one or more \w+) failed$|^an unhandled error occurred",
    re.I,
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Program failed with an unhandled exception")


class EventPipe:
    """A named pipe that Pulumi writes its events to like a file. Drain it often: Pulumi waits while it is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = bytearray()
        self._taken = 0

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

    def take_lines(self) -> list[str]:
        """Return the complete lines that were written since the last call."""
        self.drain()
        end = self._data.rfind(b"\n") + 1
        lines = _split(self._data[self._taken : end])
        self._taken = max(end, self._taken)
        return lines

    def lines(self) -> list[str]:
        """Return all lines."""
        self.drain()
        return _split(self._data)

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, _CHUNK_BYTES)
        except BlockingIOError:
            return b""


@dataclass(frozen=True)
class Failure:
    """An error that Pulumi reported."""

    resource: str
    """Logical name of the resource; empty for an error of the program."""
    message: str


@dataclass(frozen=True)
class Result:
    """The result of a run: numbers of resources by operation, and errors."""

    changes: dict[str, int]
    failures: tuple[Failure, ...]

    @property
    def changed(self) -> bool:
        return any(count for operation, count in self.changes.items() if operation not in _UNCHANGED)

    @property
    def created(self) -> bool:
        return any(self.changes.get(operation) for operation in ("create", "create-replacement", "replace"))


def parse(lines: Iterable[str]) -> Result:
    """Return the result that the lines of an event log describe."""
    changes: dict[str, int] = {}
    failures: list[Failure] = []
    for event in _events(lines):
        if summary := event.get("summaryEvent"):
            changes = {str(k): int(v) for k, v in summary.get("resourceChanges", {}).items()}
        diagnostic = event.get("diagnosticEvent", {})
        if diagnostic.get("severity") == "error" and (message := clean(diagnostic["message"])):
            failure = Failure(diagnostic.get("urn", "").rpartition("::")[2], message)
            failures += [failure] if failure not in failures else []
    return Result(changes, tuple(failures))


def clean(message: str) -> str:
    """Return the sentence that a provider or the program wrote: of a traceback, its last line; empty if none."""
    text = message.strip().removeprefix("error: ")
    if _TRACEBACK.search(text):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        text = lines[-1]
    for pattern in _NOISE:
        text = pattern.sub("", text)
    return "" if _EMPTY.match(text) else text.strip()


def _split(data: bytearray) -> list[str]:
    """Return the lines; str.splitlines() would also split at characters that JSON texts contain, such as U+0085."""
    return data.decode(errors="replace").removesuffix("\n").split("\n") if data else []


def _events(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # The last line of a killed run may be incomplete.
            continue
