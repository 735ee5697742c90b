"""Progress events: one JSON line each, appended to the file named by MUSTER_PROGRESS, for programs that show them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

Phase = Literal["machines", "bootstrap", "ready"]
NOTICE = "notice"
"""Key of lines that concern no node: what the person who waits should read."""
State = Literal["start", "ok", "changed", "skipped", "failed"]


@dataclass(frozen=True)
class Event:
    """A step of a node that started or ended."""

    phase: Phase
    node: str
    step: str
    state: State
    detail: str = ""
    t: float = field(default_factory=time.time)
    """Seconds since the epoch."""


Report = Callable[[Event], None]


def emit(event: Event) -> None:
    """Append an event to the progress file, if there is one."""
    append_line(json.dumps(asdict(event)))


def announce(text: str) -> None:
    """Tell the person who waits why it takes longer: through the progress file, or on standard error without one."""
    if not append_line(json.dumps({NOTICE: text})):
        print(text, file=sys.stderr, flush=True)


def append_line(line: str) -> bool:
    """Append a line to the progress file; return False if there is none."""
    path = os.environ.get("MUSTER_PROGRESS")
    if not path:
        return False
    # One write on an O_APPEND descriptor: lines of several threads and processes never interleave.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
    return True
