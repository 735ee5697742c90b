"""Files of JSON objects, one per line, that survive a kill in the middle of a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JsonLines:
    """A file to which lines are appended, each in a single write, after removing an incomplete last line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_incomplete_line(path)
        self._file = path.open("ab", buffering=0)
        self._is_incomplete = False

    def append(self, item: Mapping[str, Any]) -> None:
        """Write a line; after an OSError, such as a full disk, the next call still starts a new line."""
        data = b"\n" * self._is_incomplete + _encode(item)
        self._is_incomplete = True
        if self._file.write(data) == len(data):
            self._is_incomplete = False

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return every complete line; a missing file or an incomplete line is not an error, as the run may be killed."""
    if not path.is_file():
        return []
    items = (_parse(line) for line in path.read_bytes().splitlines())
    return [item for item in items if item is not None]


def drop_after(path: Path, step: int) -> int:
    """Remove the lines after `step`, which a resumed run writes again, and return their number."""
    lines = read_lines(path)
    remaining = [line for line in lines if line.get("step", 0) <= step]
    if len(remaining) < len(lines):
        rewritten = path.with_suffix(".rewrite")
        rewritten.write_bytes(b"".join(_encode(line) for line in remaining))
        os.replace(rewritten, path)
    return len(lines) - len(remaining)


def _remove_incomplete_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)


def _encode(item: Mapping[str, Any]) -> bytes:
    return json.dumps({key: _to_json(value) for key, value in item.items()}, allow_nan=False).encode() + b"\n"


def _to_json(value: Any) -> Any:
    """Return NaN and infinities as text, because JSON does not have them; reading turns them back into numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        item = json.loads(line)
    except ValueError:
        return None
    if not isinstance(item, dict):
        return None
    return {key: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for key, value in item.items()}
