"""Pulumi's own record of its runs, in which those are too that `muster` did not start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.home import StackHome

_SUFFIX = ".history.json"


@dataclass(frozen=True)
class Run:
    kind: str
    """`update` or `destroy`: the others do not decide whether the cluster is ready."""
    good: bool
    began: float
    ended: float


def last_run(stack: StackHome) -> Run | None:
    """A run that was killed is not in there; Pulumi's lock stays behind from that one."""
    return next((run for run in _newest_first(stack) if run.kind in ("update", "destroy")), None)


def _newest_first(stack: StackHome) -> Iterator[Run]:
    for file in sorted(stack.pulumi_history.glob(f"{stack.name}-*{_SUFFIX}"), key=_ended_ns, reverse=True):
        try:
            found = json.loads(file.read_text())
            yield Run(found["kind"], found["result"] == "succeeded", found["startTime"], _ended_ns(file) / 1e9)
        except (OSError, ValueError, KeyError):
            continue


def _ended_ns(file: Path) -> int:
    """Inside, times are whole seconds; the name has when the record was written."""
    number = file.name.removesuffix(_SUFFIX).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
