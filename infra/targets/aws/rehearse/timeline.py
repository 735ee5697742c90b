"""The timeline of a rehearsal: what happened to whom and when, as text and as a picture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

_ROW_PX, _LEFT_PX, _WIDTH_PX, _MARGIN_PX = 26, 150, 900, 30
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")


@dataclass(frozen=True)
class Event:
    """A moment at which something changed."""

    at_s: float
    """Seconds since the rehearsal began."""
    subject: str
    """A machine or a phase of the rehearsal."""
    what: str


@dataclass
class Timeline:
    """Records events of several threads in the order in which they happen."""

    clock: Callable[[], float] = time.monotonic
    say: Callable[[Event], None] = lambda _: None
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began, self._lock = self.clock(), threading.Lock()

    def record(self, subject: str, what: str) -> None:
        """Record that `subject` is now in the state `what`; a repeated state is not recorded again."""
        with self._lock:
            last = next((event.what for event in reversed(self.events) if event.subject == subject), "")
            if what == last:
                return
            event = Event(self.clock() - self._began, subject, what)
            self.events.append(event)
        self.say(event)


def render_text(events: Sequence[Event]) -> str:
    """Return the events as a table."""
    width = max((len(event.subject) for event in events), default=0)
    return "".join(f"{event.at_s:8.1f} s  {event.subject:{width}}  {event.what}\n" for event in events)


def render_picture(events: Sequence[Event], end_s: float) -> str:
    """Return an SVG with one row per subject: each state is a bar from its event to the next one of its subject."""
    subjects = list(dict.fromkeys(event.subject for event in events))
    height = _ROW_PX * (len(subjects) + 1) + 2 * _MARGIN_PX
    scale = _WIDTH_PX / max(end_s, 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT_PX + _WIDTH_PX + _MARGIN_PX}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for row, subject in enumerate(subjects):
        top = _MARGIN_PX + row * _ROW_PX
        parts.append(f'<text x="4" y="{top + 15}">{escape(subject)}</text>')
        own = [event for event in events if event.subject == subject]
        ends = [*(event.at_s for event in own[1:]), end_s]
        for number, (event, end) in enumerate(zip(own, ends, strict=True)):
            left, length = _LEFT_PX + event.at_s * scale, max((end - event.at_s) * scale, 1)
            title = escape(f"{event.what}: {event.at_s:.1f} to {end:.1f} s")
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_ROW_PX - 6}" '
                f'fill="{_COLOURS[number % len(_COLOURS)]}"><title>{title}</title></rect>'
            )
    axis = _MARGIN_PX + len(subjects) * _ROW_PX + 12
    parts += [
        f'<text x="{_LEFT_PX + end_s * share / 4 * scale:.1f}" y="{axis}">{end_s * share / 4:.0f} s</text>'
        for share in range(5)
    ]
    return "\n".join([*parts, "</svg>\n"])
