"""The attempts of a run, each from the start of its processes to their last record, and the phases of each start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.report.run_folder import Run

# The phase that each event ends, in the order of a start.
PHASES = {
    "imported": "import",
    "joined": "rendezvous",
    "built": "build",
    "loaded": "load",
    "first_step": "first step",
}


@dataclass
class Attempt:
    """One attempt; times are in seconds since the first start of the run."""

    number: int
    began: float
    ended: float
    down: float = 0.0
    """Seconds from the last record of the previous attempt to this start."""
    world_size: int = 0
    from_step: int = 0
    first_step_at: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    end: str = ""

    @property
    def start_up(self) -> float:
        return sum(self.phases.values())


def list_attempts(run: Run) -> list[Attempt]:
    """Return the attempts of a run, each of which begins with a `started` event.

    Events of the job script (`job_...`) are left out: they are about the job, not about its ranks.
    """
    groups: list[list[dict[str, Any]]] = []
    for event in (event for event in run.events if not str(event.get("event")).startswith("job_")):
        if event.get("event") == "started" or not groups:
            groups.append([])
        groups[-1].append(event)
    if not groups:
        return []
    origin = _start_time(groups[0][0])
    attempts: list[Attempt] = []
    for index, events in enumerate(groups):
        until = groups[index + 1][0]["time"] if index + 1 < len(groups) else float("inf")
        attempt = _make_attempt(index + 1, events, origin, _last_line_time(run, events[0]["time"], until))
        if attempts:
            attempt.down = max(attempt.began - attempts[-1].ended, 0.0)
        attempts.append(attempt)
    return attempts


def _make_attempt(number: int, events: Sequence[dict[str, Any]], origin: float, last_line: float) -> Attempt:
    began = _start_time(events[0])
    attempt = Attempt(number, began - origin, max(events[-1]["time"], last_line) - origin)
    before = began
    for event in events:
        kind = event.get("event", "")
        if kind in PHASES and PHASES[kind] not in attempt.phases and attempt.first_step_at is None:
            attempt.phases[PHASES[kind]] = max(event["time"] - before, 0.0)
            before = event["time"]
        if kind == "joined":
            attempt.world_size = int(event.get("world_size", 0))
        elif kind == "loaded":
            attempt.from_step = int(event.get("step", 0))
        elif kind == "first_step":
            attempt.first_step_at = event["time"] - origin
        elif kind == "ended":
            attempt.end = str(event.get("outcome", ""))
    return attempt


def _start_time(event: dict[str, Any]) -> float:
    # A process begins before its first event, which it writes after its imports.
    return float(event.get("began") or event["time"])


def _last_line_time(run: Run, since: float, until: float) -> float:
    times = [line["time"] for line in run.lines if since <= line.get("time", 0) < until]
    return max(times, default=0.0)
