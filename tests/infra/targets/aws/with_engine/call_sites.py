"""Call sites: the kinds of calls that muster makes of AWS, and an error that is injected once at each of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

# Parts of a path that are ids or names: of zones, filesystems, mount targets, access points and objects.
_ID = re.compile(r"(?:[A-Z0-9]{8,}|(?:fs|fsmt|fsap|subnet|sg|vpc|eni)-[0-9a-f]+|arn:.*)$")


def name_site(service: str, action: str, params: dict[str, str]) -> str:
    """Return the name of a kind of call, the same whichever resource it is for."""
    method, _, path = action.partition(" ")
    if not path:
        return f"{service} {action}"
    option = params.get("query", "").split("&")[0].partition("=")[0]
    if service == "s3":
        parts = [part for part in path.split("/") if part]
        path = "/".join(["", "bucket", "object"][: len(parts[:2]) + 1])
    else:
        path = "/".join("*" if _ID.match(part) else part for part in path.rstrip("/").split("/"))
    return f"{service} {method} {path or '/'}{f'?{option}' if option else ''}"


@dataclass
class OneErrorPerSite:
    """Fails the first call of each kind; codes are used in turn. Given to `Moto.interfere`."""

    codes: Sequence[str]
    injected: dict[str, str] = field(default_factory=dict)
    """Code by site."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, service: str, action: str, params: dict[str, str]) -> str:
        site = name_site(service, action, params)
        with self._lock:
            if site in self.injected:
                return ""
            self.injected[site] = self.codes[len(self.injected) % len(self.codes)]
            return self.injected[site]
