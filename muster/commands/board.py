"""What `up` is doing, from its progress events: one row per node and one line per phase. Pure; drawn elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bootstrap.progress import Event
from slurm.hostlist import hostlist

PHASES = ("machines", "bootstrap", "ready")
_UNDER_WAY = {"machines": "starting", "bootstrap": "configuring", "ready": "testing"}
_ORDER = ("failed", "configuring", "starting", "testing", "waiting", "started", "configured", "done", "unchanged")


@dataclass
class Row:
    node: str
    machine: str = ""
    step: str = ""
    state: str = "waiting"
    first: float | None = None
    last: float | None = None
    running: bool = False
    changed: int = 0
    note: str = ""
    """What a step that goes on has to say: why a machine is still waited for."""

    def seconds(self, now: float) -> float | None:
        if self.first is None:
            return None
        end = now if self.running else self.last
        return max(0.0, (end or now) - self.first)


@dataclass
class Phase:
    name: str
    first: float
    last: float
    nodes: set[str] = field(default_factory=set)
    steps: int = 0
    changed: int = 0

    @property
    def seconds(self) -> float:
        return self.last - self.first


@dataclass
class Board:
    """Feed it events in the order they come."""

    rows: dict[str, Row]
    phases: dict[str, Phase] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[str]) -> Board:
        return cls({name: Row(name) for name in nodes})

    def take(self, event: Event) -> None:
        phase = self.phases.setdefault(event.phase, Phase(event.phase, event.t, event.t))
        phase.last = max(phase.last, event.t)
        phase.nodes |= {event.node} if event.node else set()
        phase.steps += event.state in ("ok", "changed")
        phase.changed += event.state == "changed"
        if event.phase == "ready":
            self._configured()
        if event.node in self.rows:
            _advance(self.rows[event.node], event)

    def _configured(self) -> None:
        """The job across the nodes begins when every node is configured, those included that take no part in it."""
        for row in self.rows.values():
            if row.state == "configuring":
                row.state, row.running, row.step = "configured", False, ""

    @property
    def phase(self) -> Phase | None:
        """The one that began last."""
        begun = [self.phases[name] for name in PHASES if name in self.phases]
        return begun[-1] if begun else None

    @property
    def waits(self) -> dict[str, list[str]]:
        """Machines that were asked for and are not there, by what was said of them: capacity, zone by zone."""
        found: dict[str, list[str]] = {}
        for row in self.rows.values():
            if row.note and row.machine == "starting":
                found.setdefault(row.note, []).append(row.node)
        return found

    def finish(self) -> None:
        """The run ended well: what did not have to be touched is as it was."""
        for row in self.rows.values():
            row.running = False
            if row.state != "failed":
                row.state = "done" if row.first is not None else "unchanged"
                row.machine = row.machine or "up"


def visible(rows: Iterable[Row], limit: int) -> tuple[list[Row], int]:
    """At most `limit` rows, those that matter most, in their own order; and how many are left out."""
    everything = list(rows)
    if len(everything) <= limit:
        return everything, 0
    ranked = sorted(range(len(everything)), key=lambda i: (_rank(everything[i]), i))
    chosen = sorted(ranked[: max(limit - 1, 0)])
    return [everything[i] for i in chosen], len(everything) - len(chosen)


def wait_line(note: str, nodes: Iterable[str]) -> str:
    return f"{'machines':<10} {hostlist(nodes)}: {note}"


def phase_line(phase: Phase, total: int) -> str:
    """One line of a finished phase, for logs."""
    nodes = f"{len(phase.nodes)} of {total} nodes" if len(phase.nodes) < total else f"{total} nodes"
    what = {
        "machines": f"{nodes} started",
        "bootstrap": f"{nodes}, {phase.steps} steps, {phase.changed or 'nothing'} changed",
        "ready": "a job crossed the nodes and all-reduced",
    }[phase.name]
    return f"{phase.name:<10} {what}, {phase.seconds:.1f} s"


def parse(lines: Sequence[str]) -> list[Event]:
    found = []
    for line in lines:
        try:
            found.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def _advance(row: Row, event: Event) -> None:
    row.first = event.t if row.first is None else row.first
    row.last = event.t
    row.running = event.state == "start"
    row.changed += event.state == "changed"
    row.step, row.note = event.step, event.detail if row.running else ""
    if event.phase == "machines":
        row.machine = "starting" if event.state == "start" else "failed" if event.state == "failed" else "up"
    if event.state == "failed":
        row.state = "failed"
    elif row.state != "failed":
        started = event.phase == "machines" and event.state != "start"
        row.state = "started" if started else _UNDER_WAY[event.phase]


def _rank(row: Row) -> int:
    return _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER)
