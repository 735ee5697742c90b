"""A step's timeline as a picture: one row for each stream, forward and backward told apart by colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.step.timeline import STREAMS, Event

COLOURS = {"forward": "#3b82c4", "backward": "#1a9e77", "wait": "#d8dee4", "bucket": "#e69f00", "optimizer": "#b0659d"}
OTHER = "#9aa3ad"
LEGEND = {
    "forward": "forward, its exchanges",
    "backward": "backward, its exchanges",
    "wait": "waiting for other stages",
    "bucket": "gradients sent",
    "optimizer": "optimizer",
    "other": "fixed cost of a step,\nwaiting for the slowest rank",
}
"""What a colour stands for, in words."""
ROWS = {"compute": "compute", "intra-node": "sent inside\nthe node", "inter-node": "sent between\nnodes"}
MILLI = 1e3


def draw(path: Path, title: str, events: Sequence[Event]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  # slow to import

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.add_subplot()
    seen: set[str] = set()
    for row, stream in enumerate(STREAMS):
        for kind in (*COLOURS, "other"):
            bars = [_bar(event) for event in events if event.stream == stream and _kind(event) == kind]
            if bars:
                label = LEGEND[kind] if kind not in seen else "_"
                seen.add(kind)
                colour = COLOURS.get(kind, OTHER)
                axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=colour, linewidth=0, label=label)
    _label(axes, title)
    figure.savefig(path, dpi=140, facecolor="white")


def _bar(event: Event) -> tuple[float, float]:
    return event.start * MILLI, (event.end - event.start) * MILLI


def _kind(event: Event) -> str:
    return next((kind for kind in COLOURS if kind in event.name), "other")


def _label(axes: Any, title: str) -> None:
    axes.set_yticks(range(len(STREAMS)), [ROWS[stream] for stream in STREAMS])
    axes.set_ylim(len(STREAMS) - 0.5, -0.5)
    axes.set_xlabel("ms since the step began")
    axes.margins(x=0.005)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
