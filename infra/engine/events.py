"""Pulumi's event log, read once at the end: what changed, and what failed with the noise taken off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Failure:
    resource: str
    """Logical name; empty where the failure is the program's."""
    message: str


@dataclass(frozen=True)
class Result:
    changes: dict[str, int]
    failures: tuple[Failure, ...]

    @property
    def changed(self) -> bool:
        return any(count for operation, count in self.changes.items() if operation not in _UNCHANGED)

    @property
    def created(self) -> bool:
        return any(self.changes.get(operation) for operation in ("create", "create-replacement", "replace"))


def parse(lines: Iterable[str]) -> Result:
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
    """The sentence a provider or the program wrote; of a traceback, its last line; nothing where nothing is said."""
    text = message.strip().removeprefix("error: ")
    if _TRACEBACK.search(text):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        text = lines[-1]
    for pattern in _NOISE:
        text = pattern.sub("", text)
    return "" if _EMPTY.match(text) else text.strip()


def _events(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # the last line of a killed run
            continue
