"""Send a message to a webhook that understands Slack's format; the address is a secret and appears in no error."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

TIMEOUT_S = 10.0
_RETRIED = (408, 425, 429)
_SERVER_ERROR = 500


class RefusedError(Exception):
    """The server will never accept this message."""


class FailedError(Exception):
    """The message may be accepted later."""

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


def send(url: str, text: str) -> None:
    """Post the message; raise RefusedError or FailedError."""
    body = json.dumps({"text": text}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310  # An admin's setting.
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        status, retry_after = error.code, error.headers.get("Retry-After", "")
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise FailedError(f"the webhook cannot be reached: {type(reason).__name__}") from None
    # Not every error of the URL is an OSError; its text would show the address.
    except Exception as error:
        raise RefusedError(f"the webhook's address is not valid: {type(error).__name__}") from None
    if status in _RETRIED or status >= _SERVER_ERROR:
        raise FailedError(f"the webhook answered {status}", float(retry_after) if retry_after.isdigit() else 0.0)
    raise RefusedError(f"the webhook answered {status}")
