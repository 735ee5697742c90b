"""The end of a cluster (`aws.ends_at`): how far ahead it is, and whether that is enough to begin something."""

from __future__ import annotations

from datetime import datetime, timedelta

from cluster.plural import format_count
from infra.targets.aws.spec import Aws, read_end

LEAST = timedelta(hours=1)
"""Shortest time before the end in which a new cluster or an image is begun: both need a part of it."""


def describe_end(section: Aws, now: datetime) -> str:
    """Return when the machines end, and in how long: a time of another zone is then seen; empty if they do not end."""
    end = read_end(section)
    if end is None:
        return ""
    left = describe_time_left(end, now)
    return f"every machine ends itself at {section.ends_at}, in {left}, even if jobs are running"


def is_near(section: Aws, now: datetime) -> bool:
    """Return whether the machines end too soon for something new."""
    end = read_end(section)
    return end is not None and end - now < LEAST


def describe_time_left(end: datetime, now: datetime) -> str:
    """Return the time until an end in its two largest units; one that has passed is 0 minutes ahead."""
    minutes = max(0, int((end - now).total_seconds()) // 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{format_count(days, 'day')} {format_count(hours, 'hour')}"
    rest_of_hour = format_count(minutes, "minute")
    return f"{format_count(hours, 'hour')} {rest_of_hour}" if hours else rest_of_hour
