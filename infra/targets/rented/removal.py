"""Remove a resource that others may still use."""

from __future__ import annotations

import time
from collections.abc import Callable

from infra.resources.error import InUseError

PAUSE_S = 2.0


def retry_while_in_use(remove: Callable[[], None], until: float) -> None:
    """Call `remove`; if the resource is in use, retry until `until` (time.monotonic), then raise InUseError."""
    while True:
        try:
            remove()
        except InUseError:
            if time.monotonic() + PAUSE_S > until:
                raise
        else:
            return
        time.sleep(PAUSE_S)
