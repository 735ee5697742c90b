"""The outbox of alerts: a bounded queue, one message for several alerts, a limit on the rate, and retries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_WAITING = 100
MAX_LINES = 20
"""Alerts in one message."""
MAX_CHARS = 400
"""Characters of an alert."""
INTERVAL_S = 15.0
"""Time between two messages; chat services accept about one per second."""
FIRST_RETRY_S = 5.0
MAX_RETRY_S = 300.0


@dataclass(frozen=True)
class Outbox:
    """Alerts that are not sent yet, and when to try next."""

    waiting: tuple[str, ...] = ()
    dropped: int = 0
    """Alerts that were dropped because too many were waiting."""
    failures: int = 0
    """Consecutive attempts that failed."""
    next_at: float = 0.0

    def is_due(self, now: float) -> bool:
        # A clock that was set back must not stop the alerts.
        return bool(self.waiting or self.dropped) and not now < self.next_at <= now + MAX_RETRY_S


def add(outbox: Outbox, texts: Sequence[str]) -> Outbox:
    """Return the outbox with new alerts at its end; beyond MAX_WAITING the oldest are dropped and counted."""
    waiting = (*outbox.waiting, *(" ".join(text.split())[:MAX_CHARS] for text in texts))
    over = max(0, len(waiting) - MAX_WAITING)
    return replace(outbox, waiting=waiting[over:], dropped=outbox.dropped + over)


def compose(outbox: Outbox, cluster: str) -> str:
    """Return the next message."""
    lines = [f"• {text}" for text in outbox.waiting[:MAX_LINES]]
    if outbox.dropped:
        lines.append(f"({outbox.dropped} older alerts were dropped)")
    return "\n".join([f"muster cluster {cluster}:", *lines])


def after_success(outbox: Outbox, now: float) -> Outbox:
    """Return the outbox without the alerts of the message."""
    return Outbox(outbox.waiting[MAX_LINES:], next_at=now + INTERVAL_S)


def after_failure(outbox: Outbox, now: float, retry_after_s: float = 0.0) -> Outbox:
    """Return the outbox with a later attempt; the pause doubles with each failure."""
    pause_s = min(MAX_RETRY_S, max(retry_after_s, FIRST_RETRY_S * 2 ** min(outbox.failures, 10)))
    return replace(outbox, failures=outbox.failures + 1, next_at=now + pause_s)
