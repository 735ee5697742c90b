"""Bootstrap as a table: steps down, nodes across (a group is one column); it fills while the work goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from bootstrap.progress import Event
from bootstrap.settle import STEP as NODES
from bootstrap.steps import order
from cluster.inventory import Inventory

SIGNS = {
    "failed": "[bold red]failed[/]",
    "start": "[yellow]running[/]",
    "changed": "[green]changed[/]",
    "skipped": "[dim]skipped[/]",
    "ok": "ok",
}
ROWS = (*(step.name for step in order.EVERY), NODES)


class Board:
    def __init__(self, inventory: Inventory) -> None:
        self._columns: dict[str, list[str]] = {}
        for node in inventory.nodes:
            self._columns.setdefault(node.group or node.name, []).append(node.name)
        self._states: dict[tuple[str, str], Event] = {}

    def __call__(self, event: Event) -> None:
        self._states[event.node, event.step] = event

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2))
        table.add_column("step", no_wrap=True)
        for title, nodes in self._columns.items():
            table.add_column(title if nodes == [title] else f"{title} ({len(nodes)})", no_wrap=True)
        seen = {step for _, step in self._states}
        for step in ROWS:
            if step in seen:
                table.add_row(step, *(self._cell(step, nodes) for nodes in self._columns.values()))
        return table

    def _cell(self, step: str, nodes: Sequence[str]) -> str:
        events = [e for n in nodes if (e := self._states.get((n, step)))]
        counts = Counter[str](e.state for e in events)
        if len(nodes) == 1 or len(counts) == 1:
            return ", ".join(SIGNS[s] for s in SIGNS if s in counts)
        return ", ".join(f"{counts[s]} {SIGNS[s]}" for s in SIGNS if s in counts)
