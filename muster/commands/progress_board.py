"""The progress of `up` as data: nodes and phases, updated with the events of its event file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bootstrap.progress import NOTICE, Event

PHASES = ("machines", "bootstrap", "ready")
_UNDER_WAY = {"machines": "starting", "bootstrap": "configuring", "ready": "testing"}


@dataclass
class NodeRow:
    """The progress of one node."""

    node: str
    machine: str = ""
    step: str = ""
    state: str = "waiting"
    first: float | None = None
    last: float | None = None
    running: bool = False
    changed: int = 0
    note: str = ""
    """Detail of a running step: why the machine is not available yet."""

    def seconds(self, now: float) -> float | None:
        if self.first is None:
            return None
        end = now if self.running else self.last
        return max(0.0, (end or now) - self.first)


@dataclass
class Phase:
    """The totals of one phase of `up`."""

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
    """The progress of all nodes and phases, updated with events in their order."""

    rows: dict[str, NodeRow]
    phases: dict[str, Phase] = field(default_factory=dict)

    @classmethod
    def for_nodes(cls, nodes: Iterable[str]) -> Board:
        return cls({name: NodeRow(name) for name in nodes})

    def update(self, event: Event) -> None:
        phase = self.phases.setdefault(event.phase, Phase(event.phase, event.t, event.t))
        phase.last = max(phase.last, event.t)
        phase.nodes |= {event.node} if event.node else set()
        phase.steps += event.state in ("ok", "changed")
        phase.changed += event.state == "changed"
        if event.phase == "ready":
            self._mark_configured()
        if event.node in self.rows:
            _advance(self.rows[event.node], event)

    def _mark_configured(self) -> None:
        """Mark all nodes as configured: the test job starts only then, even if it does not run on every node."""
        for row in self.rows.values():
            if row.state == "configuring":
                row.state, row.running, row.step = "configured", False, ""

    @property
    def phase(self) -> Phase | None:
        """The phase that began last."""
        begun = [self.phases[name] for name in PHASES if name in self.phases]
        return begun[-1] if begun else None

    @property
    def waits(self) -> dict[str, list[str]]:
        """Nodes whose machines were requested and are not available yet, by the reason."""
        nodes_by_note: dict[str, list[str]] = {}
        for row in self.rows.values():
            if row.note and row.machine == "starting":
                nodes_by_note.setdefault(row.note, []).append(row.node)
        return nodes_by_note

    def finish(self) -> None:
        """Mark all nodes as done or unchanged after a successful run."""
        for row in self.rows.values():
            row.running = False
            if row.state != "failed":
                row.state = "done" if row.first is not None else "unchanged"
                row.machine = row.machine or "up"


class EventTail:
    """A reader of the new complete lines of a growing event file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._notices: list[str] = []

    def events(self) -> list[Event]:
        """Return the new events; keep the new notices for `take_notices`."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()[self.offset :]
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        self._notices += parse_notices(lines)
        return parse_events(lines)

    def take_notices(self) -> list[str]:
        """Return the notices that were read since the last call."""
        notices, self._notices = self._notices, []
        return notices


def parse_events(lines: Sequence[str]) -> list[Event]:
    """Return the events in the lines; skip lines that are not events."""
    events = []
    for line in lines:
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return events


def parse_notices(lines: Sequence[str]) -> list[str]:
    """Return the notices in the lines."""
    notices = []
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict) and NOTICE in fields:
            notices.append(str(fields[NOTICE]))
    return notices


def _advance(row: NodeRow, event: Event) -> None:
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
