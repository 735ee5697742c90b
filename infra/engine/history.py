"""Pulumi's own history of its runs, which includes runs that `muster` did not start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.home import StackHome

_SUFFIX = ".history.json"


@dataclass(frozen=True)
class Run:
    """A run of Pulumi that has ended."""

    kind: str
    """`update`, `destroy` and so on."""
    good: bool
    began: float
    """Seconds since 1970, as is `ended`."""
    ended: float


def last_run(stack: StackHome) -> Run | None:
    """Return the last update or destroy; the history has no killed runs, which leave Pulumi's lock behind instead."""
    return next((run for run in _newest_first(stack) if run.kind in ("update", "destroy")), None)


def _newest_first(stack: StackHome) -> Iterator[Run]:
    for file in sorted(stack.pulumi_history.glob(f"{stack.name}-*{_SUFFIX}"), key=_ended_ns, reverse=True):
        try:
            record = json.loads(file.read_text())
            yield Run(record["kind"], record["result"] == "succeeded", record["startTime"], _ended_ns(file) / 1e9)
        except (OSError, ValueError, KeyError):
            continue


def _ended_ns(file: Path) -> int:
    """Return when a record was written, from its name: the times inside are whole seconds."""
    number = file.name.removesuffix(_SUFFIX).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
