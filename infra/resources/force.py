"""Whether a user accepts that a change ends jobs or deletes what only the replaced machine has (`make up FORCE=1`)."""

from __future__ import annotations

import os

FORCE = "MUSTER_FORCE"


def is_forced() -> bool:
    """Return whether the running `up` was started with FORCE=1."""
    return os.environ.get(FORCE) == "1"
