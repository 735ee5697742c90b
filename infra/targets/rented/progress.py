"""Progress of the machines of nodes, for the screen of `up`."""

from __future__ import annotations

from typing import Any

from bootstrap.progress import Event, emit
from infra.resources.properties import Properties


def report_machine(props: Properties, state: Any, detail: str = "") -> None:
    """Report how far the machine of a node is; other resources are no machines of a node."""
    if props.get("node"):
        emit(Event("machines", props["node"], "create", state, detail))
