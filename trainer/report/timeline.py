"""The timeline of a profiled step, rank by rank: a picture, and a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.report.axes import BLUE, GREY, ORANGE, PURPLE, legend_above, make_sentence
from trainer.report.run_folder import Run

Timeline = dict[str, Any]
"""What a rank has written: its step and its events."""
MOST_RANKS = 16
LINK_COLOURS = {"node": BLUE, "network": ORANGE, "": PURPLE}
LINK_NAMES = {"node": "inside the node", "network": "between nodes"}
_US_PER_MS = 1000


def select_timelines(timelines: Mapping[int, Timeline]) -> dict[int, Timeline]:
    """Return the timelines of the newest step that several ranks have profiled, or of the newest one.

    A rank repeats a profile that differs from its last, so the newest step of ranks may differ.
    """
    steps = [timeline["step"] for timeline in timelines.values()]
    if not steps:
        return {}
    newest = max([step for step in steps if steps.count(step) > 1] or steps)
    return {rank: timeline for rank, timeline in sorted(timelines.items()) if timeline["step"] == newest}


def make_chrome_trace(timelines: Mapping[int, Timeline]) -> dict[str, Any]:
    """Return a trace in Chrome's format: a process for each rank, with compute and communication below each other.

    Collectives that run at the same time are in rows of their own.
    """
    trace: list[dict[str, Any]] = []
    for rank, timeline in timelines.items():
        trace.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for event, row in zip(timeline["events"], assign_rows(timeline["events"]), strict=True):
            details = {key: event[key] for key in ("group", "link", "mb") if key in event}
            times = {"ts": event["start_us"], "dur": event["end_us"] - event["start_us"]}
            names = {"name": event["name"], "cat": event["kind"]}
            trace.append({"ph": "X", "pid": rank, "tid": row, **names, **times, "args": details})
    return {"traceEvents": trace, "displayTimeUnit": "ms"}


def assign_rows(events: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return a row for each event, in the order of time: 0 for compute, the first free one from 1 for collectives."""
    free_at: list[float] = []
    rows = []
    for event in events:
        if event["kind"] == "compute":
            rows.append(0)
            continue
        row = next((row for row, end in enumerate(free_at) if end <= event["start_us"]), len(free_at))
        free_at[row : row + 1] = [event["end_us"]]
        rows.append(row + 1)
    return rows


def draw_timeline(figure: Any, run: Run) -> str | None:
    """Draw the step of up to 16 ranks: compute above communication, which has the colour of its link."""
    selected = select_timelines(run.timelines)
    timelines = dict(list(selected.items())[:MOST_RANKS])
    events = [event for timeline in timelines.values() for event in timeline["events"]]
    if not events:
        return None
    axes = figure.add_subplot()
    began = min(event["start_us"] for event in events)
    labelled: set[str] = set()
    for place, timeline in enumerate(timelines.values()):
        for kind, colour, link in (
            ("compute", GREY, None),
            *(("communication", c, n) for n, c in LINK_COLOURS.items()),
        ):
            bars = [
                ((event["start_us"] - began) / _US_PER_MS, (event["end_us"] - event["start_us"]) / _US_PER_MS)
                for event in timeline["events"]
                if event["kind"] == kind and (link is None or event.get("link", "") == link)
            ]
            label = kind if link is None else LINK_NAMES.get(link, kind)
            if bars:
                height = (place - 0.4, 0.38) if link is None else (place + 0.02, 0.38)
                axes.broken_barh(bars, height, facecolors=colour, label="_" if label in labelled else label)
                labelled.add(label)
    axes.set_yticks(range(len(timelines)), [f"rank {rank}" for rank in timelines])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.tick_params(length=0)
    legend_above(axes)
    step = next(iter(timelines.values()))["step"]
    parts = [f"step {step}, by the clocks of the nodes", "each rank computes above and communicates below"]
    parts += [f"the first {MOST_RANKS} ranks"] if len(selected) > MOST_RANKS else []
    return make_sentence(parts)
