"""Write the timeline of a step: JSON for a trace viewer, or a PNG chart with one row per stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.step.timeline import STREAMS, Event, to_chrome_trace
from trainer.config.errors import ConfigError, ConfigProblem

SUFFIXES = (".json", ".png")
COLOURS = {"forward": "#3b82c4", "backward": "#1a9e77", "wait": "#d8dee4", "bucket": "#e69f00", "optimizer": "#b0659d"}
OTHER_COLOUR = "#9aa3ad"
LEGEND = {
    "forward": "forward and its communication",
    "backward": "backward and its communication",
    "wait": "waiting for other stages",
    "bucket": "gradient reduction",
    "optimizer": "optimizer",
    "other": "fixed overhead,\nwaiting for the slowest rank",
}
"""Legend entry of each color."""
ROWS = {"compute": "compute", "intra-node": "sent inside\nthe node", "inter-node": "sent between\nnodes"}
MILLISECONDS = 1e3


def check_output(where: str, out: Path) -> None:
    """Raise ConfigError if the file cannot be written, before anything is computed for it."""
    if out.suffix not in SUFFIXES:
        message = f"{out.name!r}; allowed: a name that ends with {' or '.join(SUFFIXES)}"
        raise ConfigError([ConfigProblem(where, message, "use .json for ui.perfetto.dev, .png for an image")])
    if not out.parent.is_dir():
        message = f"{out}; allowed: a file in a folder that exists"
        raise ConfigError([ConfigProblem(where, message, f"create {out.parent} first, or name another")])


def write_timeline(out: Path, title: str, events: Sequence[Event]) -> str:
    """Write the file and return a summary; raise ConfigError if it cannot be written."""
    try:
        _write(out, title, events)
    except OSError as error:
        message = f"{out} ({error.strerror}); allowed: a file that can be written"
        raise ConfigError([ConfigProblem("out", message, "name another")]) from error
    step = max(event.end for event in events)
    return f"{len(events)} events of a step of {1000 * step:,.1f} ms: {out}"


def _write(out: Path, title: str, events: Sequence[Event]) -> None:
    if out.suffix == ".png":
        _draw(out, title, events)
    else:
        out.write_text(json.dumps(to_chrome_trace(events)), encoding="utf-8")


def _draw(path: Path, title: str, events: Sequence[Event]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  # loading matplotlib takes a second, which JSON output should not pay

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.add_subplot()
    labelled: set[str] = set()
    for row, stream in enumerate(STREAMS):
        for kind in (*COLOURS, "other"):
            bars = [_bar(event) for event in events if event.stream == stream and _kind(event) == kind]
            if bars:
                label = LEGEND[kind] if kind not in labelled else "_"
                labelled.add(kind)
                colour = COLOURS.get(kind, OTHER_COLOUR)
                axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=colour, linewidth=0, label=label)
    _label(axes, title)
    figure.savefig(path, dpi=140, facecolor="white")


def _bar(event: Event) -> tuple[float, float]:
    return event.start * MILLISECONDS, (event.end - event.start) * MILLISECONDS


def _kind(event: Event) -> str:
    return next((kind for kind in COLOURS if kind in event.name), "other")


def _label(axes: Any, title: str) -> None:
    axes.set_yticks(range(len(STREAMS)), [ROWS[stream] for stream in STREAMS])
    axes.set_ylim(len(STREAMS) - 0.5, -0.5)
    axes.set_xlabel("ms since the step began")
    axes.margins(x=0.005)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
