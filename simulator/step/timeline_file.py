"""The timeline of a step as a file: JSON for a trace viewer, PNG to look at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from simulator.step.timeline import Event, to_chrome
from trainer.config.errors import ConfigError, ConfigProblem

KINDS = (".json", ".png")


def check(where: str, out: Path) -> None:
    """Raises ConfigError where nothing could be written there; before anything is computed for it."""
    if out.suffix not in KINDS:
        message = f"{out.name!r}; allowed: a name that ends with {' or '.join(KINDS)}"
        raise ConfigError([ConfigProblem(where, message, "json is for ui.perfetto.dev, png to look at")])
    if not out.parent.is_dir():
        message = f"{out}; allowed: a file in a folder that exists"
        raise ConfigError([ConfigProblem(where, message, f"make {out.parent} first, or name another")])


def write(out: Path, title: str, events: Sequence[Event]) -> str:
    """What was written, in words; ConfigError where it cannot be."""
    try:
        _write(out, title, events)
    except OSError as bad:
        message = f"{out} ({bad.strerror}); allowed: a file that can be written"
        raise ConfigError([ConfigProblem("out", message, "name another")]) from bad
    step = max(event.end for event in events)
    return f"{len(events)} events of a step of {1000 * step:,.1f} ms: {out}"


def _write(out: Path, title: str, events: Sequence[Event]) -> None:
    if out.suffix == ".png":
        from simulator.step.timeline_picture import draw  # noqa: PLC0415  # matplotlib, only now

        draw(out, title, events)
    else:
        out.write_text(json.dumps(to_chrome(events)), encoding="utf-8")
