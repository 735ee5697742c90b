"""Calls that AWS throttled or could not answer, and that were repeated: how many, and how long the retries took.

Processes that `up` starts append to its progress file. One without such a file, as the command, remembers its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.progress import append_line
from infra.targets.aws.launcher.error_codes import classify_code

_CODE, _SECONDS = "retried", "seconds"
_REJECTED = "muster_rejected"


@dataclass(frozen=True)
class Retry:
    """A repeated call: the code that it was rejected with, and the time until the next answer."""

    code: str
    seconds: float


_own: list[Retry] = []
"""Retries of this process, if it has no progress file."""


def note_retry(code: str, seconds: float) -> None:
    """Note that a call was repeated, so that `up` can say what retries took."""
    # A full disk must not fail the call.
    with suppress(OSError):
        if not append_line(json.dumps({_CODE: code, _SECONDS: round(seconds, 3)})):
            _own.append(Retry(code, seconds))


def watch_retries(client: Any) -> Any:
    """Note the retries that AWS's library makes for a client; return the client."""
    client.meta.events.register("needs-retry", _compare_attempts)
    return client


def take_retries(progress: Path) -> list[Retry]:
    """Return the retries of a progress file and of this process, and forget the latter."""
    own = [*_own]
    _own.clear()
    return [*own, *_parse(progress.read_text(errors="replace").splitlines() if progress.exists() else ())]


def describe_retries(retries: Iterable[Retry]) -> str:
    """Return a line for the person who waits; empty if there were no retries."""
    listed = list(retries)
    if not listed:
        return ""
    codes = Counter(retry.code for retry in listed)
    each = ", ".join(f"{number} {code}" for code, number in sorted(codes.items(), key=lambda item: (-item[1], item[0])))
    calls = f"{len(listed)} call" if len(listed) == 1 else f"{len(listed)} calls"
    return (
        f"AWS throttled or could not answer {calls} of muster ({each}); "
        f"retries took {sum(retry.seconds for retry in listed):.1f} s in all"
    )


def _compare_attempts(request_dict: dict[str, Any], response: Any, **_event: Any) -> None:
    """Note the attempt before this one if it was rejected; called with the answer to each attempt of a call."""
    context, now = request_dict["context"], time.monotonic()
    if earlier := context.pop(_REJECTED, None):
        code, since = earlier
        note_retry(code, now - since)
    code = str(response[1].get("Error", {}).get("Code", "")) if response else ""
    if classify_code(code) == "throttle":
        context[_REJECTED] = (code, now)


def _parse(lines: Iterable[str]) -> Iterable[Retry]:
    """Return the retries among the lines of a progress file; the others are events of nodes."""
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict) and _CODE in fields:
            yield Retry(str(fields[_CODE]), float(fields[_SECONDS]))
