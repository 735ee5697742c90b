"""A clock that stands still, and ends of clusters that are counted from its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from infra.targets.aws.spec import END_FORMAT

NOW = datetime(2030, 1, 31, 12, 0, 30, tzinfo=UTC)


class StoppedClock(datetime):
    """`datetime` for a module under test: otherwise a text says one minute less if the next minute begins."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        del tz
        return NOW


def end_in_minutes(minutes: int) -> str:
    """Return the end that is so many minutes ahead of NOW, without its seconds."""
    return (NOW + timedelta(minutes=minutes)).strftime(END_FORMAT)
