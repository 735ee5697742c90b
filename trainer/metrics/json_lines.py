"""A file of JSON objects, one per line, that survives being killed in the middle of a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JsonLines:
    """Appends; each line goes to the file in one write, and a torn one from before is cut off first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        self._file = path.open("ab", buffering=0)
        self._torn = False

    def append(self, item: Mapping[str, Any]) -> None:
        """Raises OSError on a full disk; the next line starts on its own all the same."""
        data = b"\n" * self._torn + _line(item)
        self._torn = True
        if self._file.write(data) == len(data):
            self._torn = False

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line; a torn one, or a file that is not there, is no error: the run was killed."""
    if not path.is_file():
        return []
    items = (_parse(line) for line in path.read_bytes().splitlines())
    return [item for item in items if item is not None]


def keep_until(path: Path, step: int) -> int:
    """Drop the lines of later steps: the run goes on from `step` and will write them again. Returns how many."""
    lines = read(path)
    kept = [line for line in lines if line.get("step", 0) <= step]
    if len(kept) < len(lines):
        beside = path.with_suffix(".rewrite")
        beside.write_bytes(b"".join(_line(line) for line in kept))
        os.replace(beside, path)
    return len(lines) - len(kept)


def _mend(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def _line(item: Mapping[str, Any]) -> bytes:
    return json.dumps({key: _plain(value) for key, value in item.items()}, allow_nan=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    """JSON has no NaN: it becomes its name, and a number again when read."""
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
