"""Format values and paths for messages, as they would be written in a stack file."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_LENGTH = 60
PLAIN = re.compile(r"^[A-Za-z_/][A-Za-z0-9_./@:-]*$")
SPECIAL = ("true", "false", "null")

Location = tuple[str | int, ...]


def path(location: Location) -> str:
    """Return a location as a path, e.g. `users.alice.ssh_keys[0]`."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{_plain(key)}" for key in location]
    return "".join(parts).removeprefix(".") or "muster:cluster"


def entry(location: Location, value: Any) -> str:
    """Return the line that sets a value, e.g. `count: 2`."""
    last = location[-1] if location else "muster:cluster"
    return f"- {inline(value)}" if isinstance(last, int) else f"{_plain(last)}: {inline(value)}"


def inline(value: Any) -> str:
    """Return a value on one line; text is quoted if YAML would read it as something else."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_plain(str(k))}: {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return _plain(value) if isinstance(value, str) else json.dumps(value)


def shown(value: object) -> str:
    """Return an input value, short enough for a message."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a huge number" if value > 10**MAX_LENGTH else str(value)
    if isinstance(value, str):
        if "PRIVATE KEY" in value:
            return "a private key"
        return json.dumps(value if len(value) <= MAX_LENGTH else value[:MAX_LENGTH] + "...", ensure_ascii=False)
    kind = "mapping" if isinstance(value, dict) else type(value).__name__
    return f"a {kind}" if value else f"an empty {kind}"


def _plain(text: str) -> str:
    return text if PLAIN.match(text) and text.lower() not in SPECIAL else json.dumps(text, ensure_ascii=False)
