"""The timeline of a rehearsal: what happened to whom and when, and which of its time was shortened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PHASE = "rehearsal"
"""Subject of the events that say which command runs."""
JOB = "job "
"""What the names of jobs begin with; then follows their number."""
WAITING = ("submitted", "pending", "configuring")
"""States of a job that does not run yet."""


@dataclass(frozen=True)
class Event:
    """A moment at which something changed."""

    at_s: float
    """Seconds since the rehearsal began."""
    subject: str
    """A machine or a phase of the rehearsal."""
    what: str


@dataclass(frozen=True)
class ShortenedTime:
    """A time in which AWS would have taken longer: all of it, or a share of it that is spread evenly."""

    begin_s: float
    end_s: float
    share: float = 1.0


@dataclass
class Timeline:
    """Records events of several threads in the order in which they happen."""

    clock: Callable[[], float] = time.monotonic
    say: Callable[[Event], None] = lambda _: None
    events: list[Event] = field(default_factory=list)
    shortened: list[ShortenedTime] = field(default_factory=list)

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

    def shorten(self, seconds: float) -> None:
        """Note that a delay of AWS takes only this long from now on."""
        begin_s = self.clock() - self._began
        self.shortened.append(ShortenedTime(begin_s, begin_s + seconds))

    def shorten_set_up(self, subject: str, seconds: float) -> None:
        """Note that the set-up of a machine that is ready contained this many seconds of shortened delays."""
        with self._lock:
            moments = {event.what: event.at_s for event in self.events if event.subject == subject}
        begin_s, end_s = moments.get("runs user data"), moments.get("ready")
        if begin_s is not None and end_s is not None and end_s > begin_s:
            self.shortened.append(ShortenedTime(begin_s, end_s, min(1.0, seconds / (end_s - begin_s))))


def render_text(events: Sequence[Event]) -> str:
    """Return the events as a table."""
    width = max((len(event.subject) for event in events), default=0)
    return "".join(f"{event.at_s:8.1f} s  {event.subject:{width}}  {event.what}\n" for event in events)
