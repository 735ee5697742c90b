"""Show the progress of `up`: a live table in a terminal, a line per phase in a log."""

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

from cluster.plural import format_count
from muster.commands import screen
from muster.commands.progress_board import PHASES, Board, EventTail, NodeRow, Phase
from slurm.hostlist import hostlist

_ORDER = ("failed", "configuring", "starting", "testing", "waiting", "started", "configured", "done", "unchanged")
_STYLE = {
    "failed": "red",
    "done": "green",
    "configured": "green",
    "started": "green",
    "unchanged": "dim",
    "waiting": "dim",
}
_DOING = {
    "": "checking what exists",
    "machines": "starting machines",
    "bootstrap": "configuring nodes",
    "ready": "running a test job on all nodes",
}
# Lines that are not rows: head, rule, status line, prompt.
_FRAME = 6


def select_visible(rows: Iterable[NodeRow], limit: int) -> tuple[list[NodeRow], int]:
    """Return at most `limit` rows, the most important in their order, and the number of hidden rows."""
    everything = list(rows)
    if len(everything) <= limit:
        return everything, 0
    ranked = sorted(range(len(everything)), key=lambda i: (_rank(everything[i]), i))
    chosen = sorted(ranked[: max(limit - 1, 0)])
    return [everything[i] for i in chosen], len(everything) - len(chosen)


def format_wait(note: str, nodes: Iterable[str]) -> str:
    """Return the line for nodes whose machines are not available yet."""
    return f"{'machines':<10} {hostlist(nodes)}: {note}"


def format_phase(phase: Phase, total: int) -> str:
    """Return the summary of a finished phase."""
    all_nodes = format_count(total, "node")
    nodes = f"{len(phase.nodes)} of {all_nodes}" if len(phase.nodes) < total else all_nodes
    what = {
        "machines": f"{nodes} started",
        "bootstrap": f"{nodes}, {format_count(phase.steps, 'step')}, {phase.changed or 'nothing'} changed",
        "ready": "a test job ran on all nodes",
    }[phase.name]
    return f"{phase.name:<10} {what}, {phase.seconds:.1f} s"


def _rank(row: NodeRow) -> int:
    return _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER)


class ProgressView(Protocol):
    """A view of the progress of `up`, refreshed by `tick`."""

    board: Board

    def tick(self) -> None: ...

    def say(self, text: str) -> None: ...


class ProgressTable:
    """A live table of nodes, for terminals."""

    def __init__(self, nodes: Iterable[str], progress: Path, live: Live) -> None:
        self.board = Board.for_nodes(nodes)
        self.tail = EventTail(progress)
        self.live = live
        self.began = time.time()
        self.spinner = Spinner("dots")

    def tick(self) -> None:
        for event in self.tail.events():
            self.board.update(event)
        for notice in self.tail.take_notices():
            self.say(notice)
        self.live.update(self.draw(time.time()))

    def say(self, text: str) -> None:
        self.live.console.print(Text(text, style="dim"))

    def draw(self, now: float) -> RenderableType:
        phase = self.board.phase
        doing = _DOING[phase.name if phase else ""]
        self.spinner.update(text=Text(f"{doing}  {now - self.began:.0f} s", style="dim"))
        if phase is None:
            return self.spinner
        waits = [Text(format_wait(note, nodes), style="yellow") for note, nodes in self.board.waits.items()]
        room = self.live.console.size.height - _FRAME - len(waits)
        return Group(build_nodes_table(self.board, now, room), *waits, self.spinner)


class ProgressLog:
    """A line for each finished phase, failure and wait, for logs and pipes."""

    def __init__(self, nodes: Iterable[str], progress: Path) -> None:
        self.board = Board.for_nodes(nodes)
        self.tail = EventTail(progress)
        self.printed_phases: set[str] = set()
        self.waits: dict[str, list[str]] = {}

    def tick(self) -> None:
        failed: dict[tuple[str, str], list[str]] = {}
        for event in self.tail.events():
            self.board.update(event)
            self._print_finished(before=event.phase)
            if event.state == "failed":
                failed.setdefault((event.phase, event.step), []).append(event.node)
        for notice in self.tail.take_notices():
            self.say(notice)
        for (phase, step), nodes in failed.items():
            self.say(f"{phase:<10} {hostlist(nodes)}: {step} failed")
        self._print_waits()

    def say(self, text: str) -> None:
        screen.out().print(text, markup=False)

    def close(self) -> None:
        self.tick()
        self._print_finished(before=None)

    def _print_waits(self) -> None:
        """Print each wait when its reason or nodes change; retries mostly repeat the same reason."""
        waits = self.board.waits
        for note, nodes in waits.items():
            if self.waits.get(note) != nodes:
                self.say(format_wait(note, nodes))
        self.waits = waits

    def _print_finished(self, before: str | None) -> None:
        names = PHASES if before is None else PHASES[: PHASES.index(before)]
        for name in names:
            if name in self.board.phases and name not in self.printed_phases:
                self.printed_phases.add(name)
                self.say(format_phase(self.board.phases[name], len(self.board.rows)))


@contextmanager
def show_progress(nodes: Iterable[str], progress: Path) -> Iterator[ProgressView]:
    """Show the progress of the nodes while the block runs."""
    console = screen.out()
    if not console.is_terminal:
        lines = ProgressLog(nodes, progress)
        yield lines
        lines.close()
        return
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        table = ProgressTable(nodes, progress, live)
        yield table
        table.tick()


def build_nodes_table(board: Board, now: float, limit: int) -> Table:
    """Return the table of nodes, with at most `limit` rows."""
    drawn = screen.new_table("node", "machine", "bootstrap step", "state", "seconds", right=["seconds"])
    rows, hidden = select_visible(board.rows.values(), max(limit, 3))
    for row in rows:
        drawn.add_row(*_cells(row, now))
    if hidden:
        drawn.add_row(Text(f"and {hidden} more", style="dim"))
    return drawn


def _cells(row: NodeRow, now: float) -> tuple[Text, ...]:
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
