"""Why a run is told to stop, as a number that ranks can take the largest of."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Ordered: what somebody wants outweighs what a machine announces, and what is known outweighs a bare signal."""

    TERMINATED = 1
    WARNED = 2
    TIME_LIMIT = 3
    PREEMPTED = 4
    ASKED = 5
    CANCELLED = 6

    @property
    def requeue(self) -> bool:
        """The run should go on later, without anybody asking for it."""
        return self < Reason.ASKED

    @property
    def text(self) -> str:
        return _TEXT[self]


_TEXT = {
    Reason.TERMINATED: "told to terminate",
    Reason.WARNED: "warned by a signal",
    Reason.TIME_LIMIT: "time limit",
    Reason.PREEMPTED: "preempted",
    Reason.ASKED: "asked to stop",
    Reason.CANCELLED: "cancelled",
}


def from_text(text: str) -> Reason:
    """The reason a stop file gives; any words of a person's own mean that they ask for it."""
    known = {reason.text: reason for reason in Reason}
    return known.get(text.strip().lower(), Reason.ASKED)
