"""Draws a running `up`: a live table in a terminal, a line per phase in a log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from bootstrap.progress import Event
from muster.commands import screen
from muster.commands.board import PHASES, Board, Row, parse, phase_line, visible, wait_line
from slurm.hostlist import hostlist

_STYLE = {
    "failed": "red",
    "done": "green",
    "configured": "green",
    "started": "green",
    "unchanged": "dim",
    "waiting": "dim",
}
_DOING = {
    "": "asking the machines what exists",
    "machines": "starting machines",
    "bootstrap": "configuring nodes",
    "ready": "running a job across all nodes",
}
# Lines that are not rows: head, rule, status line, prompt.
_FRAME = 6


class Watcher(Protocol):
    board: Board

    def tick(self) -> None: ...

    def say(self, text: str) -> None: ...


class Tail:
    """New whole lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def events(self) -> list[Event]:
        if not self.path.exists():
            return []
        data = self.path.read_bytes()[self.offset :]
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return parse(whole.decode(errors="replace").splitlines())


class LiveTable:
    def __init__(self, nodes: Iterable[str], progress: Path, live: Live) -> None:
        self.board = Board.of(nodes)
        self.tail = Tail(progress)
        self.live = live
        self.began = time.time()
        self.spinner = Spinner("dots")

    def tick(self) -> None:
        for event in self.tail.events():
            self.board.take(event)
        self.live.update(self.draw(time.time()))

    def say(self, text: str) -> None:
        self.live.console.print(Text(text, style="dim"))

    def draw(self, now: float) -> RenderableType:
        phase = self.board.phase
        doing = _DOING[phase.name if phase else ""]
        self.spinner.update(text=Text(f"{doing}  {now - self.began:.0f} s", style="dim"))
        if phase is None:
            return self.spinner
        waits = [Text(wait_line(note, nodes), style="yellow") for note, nodes in self.board.waits.items()]
        room = self.live.console.size.height - _FRAME - len(waits)
        return Group(nodes_table(self.board, now, room), *waits, self.spinner)


class Lines:
    """For logs and pipes: says when a phase begins and what it came to."""

    def __init__(self, nodes: Iterable[str], progress: Path) -> None:
        self.board = Board.of(nodes)
        self.tail = Tail(progress)
        self.told: set[str] = set()
        self.waits: dict[str, list[str]] = {}

    def tick(self) -> None:
        failed: dict[tuple[str, str], list[str]] = {}
        for event in self.tail.events():
            self.board.take(event)
            self._tell_finished(before=event.phase)
            if event.state == "failed":
                failed.setdefault((event.phase, event.step), []).append(event.node)
        for (phase, step), nodes in failed.items():
            self.say(f"{phase:<10} {hostlist(nodes)}: {step} failed")
        self._tell_waits()

    def say(self, text: str) -> None:
        screen.out().print(text, markup=False)

    def close(self) -> None:
        self.tick()
        self._tell_finished(before=None)

    def _tell_waits(self) -> None:
        """Once for each change: what a zone says when it is asked again is mostly the same."""
        waits = self.board.waits
        for note, nodes in waits.items():
            if self.waits.get(note) != nodes:
                self.say(wait_line(note, nodes))
        self.waits = waits

    def _tell_finished(self, before: str | None) -> None:
        names = PHASES if before is None else PHASES[: PHASES.index(before)]
        for name in names:
            if name in self.board.phases and name not in self.told:
                self.told.add(name)
                self.say(phase_line(self.board.phases[name], len(self.board.rows)))


@contextmanager
def watching(nodes: Iterable[str], progress: Path) -> Iterator[Watcher]:
    console = screen.out()
    if not console.is_terminal:
        lines = Lines(nodes, progress)
        yield lines
        lines.close()
        return
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        table = LiveTable(nodes, progress, live)
        yield table
        table.tick()


def nodes_table(board: Board, now: float, limit: int) -> Table:
    drawn = screen.table("node", "machine", "bootstrap step", "state", "seconds", right=["seconds"])
    rows, hidden = visible(board.rows.values(), max(limit, 3))
    for row in rows:
        drawn.add_row(*_cells(row, now))
    if hidden:
        drawn.add_row(Text(f"and {hidden} more", style="dim"))
    return drawn


def _cells(row: Row, now: float) -> tuple[Text, ...]:
    style = _STYLE.get(row.state, "cyan")
    seconds = row.seconds(now)
    step = row.step if row.state not in ("done", "unchanged") else f"{row.changed} changed" if row.changed else ""
    return (
        Text(row.node),
        Text(row.machine or "·", style="red" if row.machine == "failed" else "dim"),
        Text(step, style="dim" if row.state == "done" else ""),
        Text(row.state, style=style),
        Text("" if seconds is None else f"{seconds:.1f}"),
    )
