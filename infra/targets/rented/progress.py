"""Progress of the machines of nodes, for the screen of `up`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from bootstrap.progress import Event, State, emit


@contextmanager
def report_creation(nodes: Collection[str]) -> Iterator[None]:
    """Report that the machines of nodes are created while the block runs, and how it ends."""

    def report(state: State, detail: str = "") -> None:
        for node in nodes:
            emit(Event("machines", node, "create", state, detail))

    report("start")
    try:
        yield
    except Exception as failed:
        report("failed", str(failed))
        raise
    report("changed")
