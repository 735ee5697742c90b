"""Report the operations of Pulumi that take long while they run: a plugin repeats calls without saying so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SLOW_S = 60.0
# Resources of muster, which report their own progress, and of Pulumi itself.
_OWN = frozenset({"muster", "pulumi", "pulumi-python"})
_VERBS = {
    "create": ("creating", "created"),
    "create-replacement": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
    "delete-replaced": ("deleting", "deleted"),
}
_BEGIN, _ENDS = "resourcePreEvent", ("resOutputsEvent", "resOpFailedEvent")


@dataclass
class _Operation:
    """A running operation."""

    name: str
    """The resource, with its type."""
    verbs: tuple[str, str]
    began: float
    is_reported: bool = False


class SlowOperations:
    """The running operations, by the events that Pulumi has written so far."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._running: dict[tuple[str, str], _Operation] = {}

    def update(self, lines: Iterable[str]) -> None:
        """Read new events, and report the operations that have become slow, and those that were and have ended."""
        for line in lines:
            self._read(line)
        for operation in self._running.values():
            seconds = self._clock() - operation.began
            if seconds >= SLOW_S and not operation.is_reported:
                operation.is_reported = True
                cause = "the cloud is slow, or rejects calls, which are repeated"
                self._say(f"still {operation.verbs[0]} {operation.name} after {seconds:.0f} s: {cause}")

    def _read(self, line: str) -> None:
        # Most of the bytes are other events.
        if not any(kind in line for kind in (_BEGIN, *_ENDS)):
            return
        event = json.loads(line)
        if begun := event.get(_BEGIN):
            self._begin(begun["metadata"])
        for kind in _ENDS:
            if ended := event.get(kind):
                self._end(ended["metadata"], has_failed=kind == "resOpFailedEvent")

    def _begin(self, metadata: dict[str, str]) -> None:
        kind, operation = metadata["type"], metadata["op"]
        if operation in _VERBS and kind.partition(":")[0] not in _OWN:
            name = f"{metadata['urn'].rpartition('::')[2]} ({kind})"
            self._running[operation, metadata["urn"]] = _Operation(name, _VERBS[operation], self._clock())

    def _end(self, metadata: dict[str, str], *, has_failed: bool) -> None:
        operation = self._running.pop((metadata["op"], metadata["urn"]), None)
        if operation and operation.is_reported:
            seconds = self._clock() - operation.began
            word = f"stopped {operation.verbs[0]}" if has_failed else operation.verbs[1]
            self._say(f"{word} {operation.name} after {seconds:.0f} s")
