"""The live progress table of bootstrap: one row per step, one column per node or node group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from bootstrap.progress import Event
from bootstrap.steps import registry
from bootstrap.wait_for_nodes import STEP as NODES_STEP
from cluster.inventory import Inventory

LABELS = {
    "failed": "[bold red]failed[/]",
    "start": "[yellow]running[/]",
    "changed": "[green]changed[/]",
    "skipped": "[dim]skipped[/]",
    "ok": "ok",
}
ROWS = (*(step.name for step in registry.EVERY), NODES_STEP)


class ProgressTable:
    """The latest state of every step on every node; call it with each event, print it with rich."""

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
        reported = {step for _, step in self._states}
        for step in ROWS:
            if step in reported:
                table.add_row(step, *(self._cell(step, nodes) for nodes in self._columns.values()))
        return table

    def _cell(self, step: str, nodes: Sequence[str]) -> str:
        events = [e for n in nodes if (e := self._states.get((n, step)))]
        counts = Counter[str](e.state for e in events)
        if len(nodes) == 1 or len(counts) == 1:
            return ", ".join(LABELS[s] for s in LABELS if s in counts)
        return ", ".join(f"{counts[s]} {LABELS[s]}" for s in LABELS if s in counts)
