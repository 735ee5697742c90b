"""Progress of the machines of nodes, for the screen of `up`."""

from __future__ import annotations

from bootstrap.progress import Event, State, emit
from infra.resources.properties import Properties


def report_machine(props: Properties, state: State, detail: str = "") -> None:
    """Report the state of a node's machine; do nothing for resources that belong to no node."""
    if props.get("node"):
        emit(Event("machines", props["node"], "create", state, detail))
