"""Ends of clusters whose time left is the same throughout a test."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from infra.targets.aws.spec import END_FORMAT


def end_in_minutes(minutes: int) -> str:
    """Return the end that is so many minutes ahead; a minute with less than 15 s left is waited out.

    Ends have whole minutes: in the next minute every text says one less.
    """
    if (second := datetime.now(UTC).second) >= 45:
        time.sleep(61 - second)
    return (datetime.now(UTC) + timedelta(minutes=minutes)).strftime(END_FORMAT)
