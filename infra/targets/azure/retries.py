"""Repeat calls that Azure limits or cannot answer: say so to the person who waits, and give up after some minutes."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline import PipelineResponse
from azure.core.pipeline.policies import RetryPolicy

from bootstrap.progress import announce

# Azure limits calls by subscription and hour: a cluster of a hundred machines may have to wait for minutes.
LIMITED_S, UNANSWERED_S, UNCONNECTED_S = 900.0, 240.0, 60.0
"""For how long a call is repeated that Azure limits, one that it does not answer or answers with an error, and one
without a connection: without a network, nobody should wait for minutes to be told."""
# More than there is time for: pauses that Azure names have whole seconds, and others become longer and longer.
RETRIES = 1000
# Who waits for less need not be told.
_QUIET_S = 2.0


class Retries(RetryPolicy[Any, Any]):  # type: ignore[misc]  # the library is Any to the checker
    """The library's policy, with messages and a limit of time."""

    def __init__(self) -> None:
        # By default the policy gives up after three answers or errors of the same kind, whatever the total is.
        super().__init__(
            retry_total=RETRIES,
            retry_status=RETRIES,
            retry_read=RETRIES,
            retry_connect=RETRIES,
            retry_backoff_factor=0.8,
            retry_backoff_max=120,
        )

    def increment(self, settings: dict[str, Any], response: Any = None, error: Exception | None = None) -> bool:
        """Return whether a call that failed is repeated after the pause that follows."""
        # Of the first failure of this call.
        since = settings.setdefault("since", time.monotonic())
        if not super().increment(settings, response=response, error=error):
            return False
        status, pause_s = None, self.get_backoff_time(settings)
        if isinstance(response, PipelineResponse):
            status = response.http_response.status_code
            pause_s = self.get_retry_after(response) or pause_s
        limit_s = LIMITED_S if status == HTTPStatus.TOO_MANY_REQUESTS else UNANSWERED_S
        if error is not None and self._is_connection_error(error):
            limit_s = UNCONNECTED_S
        waited_s = time.monotonic() - since
        if waited_s + pause_s > limit_s:
            return False
        if pause_s >= _QUIET_S:
            request = response.http_request
            call = f"{request.method} of {urlsplit(request.url).path.rpartition('/')[2]}"
            announce(describe_wait(call, status, waited_s, pause_s, limit_s))
        return True


def describe_wait(call: str, status: int | None, waited_s: float, pause_s: float, limit_s: float) -> str:
    """Return the line about a call that is repeated; `status` is None if there was no answer. Pure."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        what = f"Azure limits calls: {call} is refused (status {status})"
    elif status is None:
        what = f"Azure does not answer {call}"
    else:
        what = f"Azure cannot answer {call} (status {status})"
    return f"{what} for {waited_s:.0f} s; next try in {pause_s:.0f} s, gives up after {limit_s:.0f} s"
