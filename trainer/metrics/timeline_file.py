"""The timeline of the last profiled step of a rank, in a file that is replaced as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainer.metrics.communication import Event, Profile, merge_intervals

MOST_COMPUTE_PIECES = 2000


def write_timeline(folder: Path, rank: int, profile: Profile) -> None:
    """Write `timeline-00000.json`: when the rank computed, and when each of its collectives ran.

    Times are microseconds since the epoch, by the clock of the rank's node.
    """
    path = folder / f"timeline-{rank:05d}.json"
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        {
            "name": event.name or event.kind,
            "kind": event.kind,
            "start_us": event.start / 1000,
            "end_us": event.end / 1000,
            **({"group": event.group, "link": event.link, "mb": event.size / 1e6} if event.name else {}),
        }
        for event in join_compute(profile.events, int(profile.span_ms * 1e6))
    ]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"step": profile.step, "rank": rank, "events": events}), encoding="utf-8")
    os.replace(part, path)


def join_compute(events: Sequence[Event], span_ns: int) -> list[Event]:
    """Return the events in the order of time, with compute in few enough pieces to draw and to store.

    Gaps between operations that are too short to see are filled.
    """
    compute = merge_intervals((event.start, event.end) for event in events if event.kind == "compute")
    shortest_gap = span_ns // MOST_COMPUTE_PIECES
    widened = merge_intervals((start, end + shortest_gap) for start, end in compute)
    joined = [Event("", start, end - shortest_gap, "compute") for start, end in widened]
    messages = [event for event in events if event.kind == "communication"]
    return sorted([*joined, *messages], key=lambda event: (event.start, event.end))
