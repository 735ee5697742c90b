"""The lives of a run: from each start of its processes to their last sign of life, and what each start took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.report.run_folder import Run

# What the time before each event went to, in the order in which a start goes through them.
PHASES = {
    "imported": "import",
    "joined": "rendezvous",
    "built": "build",
    "loaded": "load",
    "first_step": "first step",
}


@dataclass
class Life:
    """Times are seconds since the run first began. `down` is from the last sign of the life before to this start."""

    number: int
    began: float
    ended: float
    down: float = 0.0
    world_size: int = 0
    from_step: int = 0
    first_step_at: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    end: str = ""

    @property
    def start_up(self) -> float:
        return sum(self.phases.values())


def lives(run: Run) -> list[Life]:
    """Each `started` event begins one. What the job script notes (`job_...`) is about the job, not about its ranks."""
    groups: list[list[dict[str, Any]]] = []
    for event in (event for event in run.events if not str(event.get("event")).startswith("job_")):
        if event.get("event") == "started" or not groups:
            groups.append([])
        groups[-1].append(event)
    if not groups:
        return []
    origin = _began(groups[0][0])
    found: list[Life] = []
    for number, events in enumerate(groups):
        until = groups[number + 1][0]["time"] if number + 1 < len(groups) else float("inf")
        life = _life(number + 1, events, origin, _last_line(run, events[0]["time"], until))
        if found:
            life.down = max(life.began - found[-1].ended, 0.0)
        found.append(life)
    return found


def _life(number: int, events: Sequence[dict[str, Any]], origin: float, last_line: float) -> Life:
    began = _began(events[0])
    life = Life(number, began - origin, max(events[-1]["time"], last_line) - origin)
    before = began
    for event in events:
        kind = event.get("event", "")
        if kind in PHASES and PHASES[kind] not in life.phases and life.first_step_at is None:
            life.phases[PHASES[kind]] = max(event["time"] - before, 0.0)
            before = event["time"]
        if kind == "joined":
            life.world_size = int(event.get("world_size", 0))
        elif kind == "loaded":
            life.from_step = int(event.get("step", 0))
        elif kind == "first_step":
            life.first_step_at = event["time"] - origin
        elif kind == "ended":
            life.end = str(event.get("outcome", ""))
    return life


def _began(event: dict[str, Any]) -> float:
    """The process began before it could say so: its imports come first."""
    return float(event.get("began") or event["time"])


def _last_line(run: Run, since: float, until: float) -> float:
    times = [line["time"] for line in run.lines if since <= line.get("time", 0) < until]
    return max(times, default=0.0)
