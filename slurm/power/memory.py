"""State that the power programs keep between runs: small JSON files, and a lock so that only one program acts."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Memory:
    """A folder of JSON objects by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Any]:
        """Return the saved value; empty if the file is missing or unreadable, because that must not stop a launch."""
        try:
            value: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return value

    def save(self, name: str, value: dict[str, Any]) -> None:
        replace_file(self.folder / f"{name}.json", json.dumps(value, indent=1))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the power programs; the kernel releases it if the holder is killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Opened for reading, so that both slurmctld's user and root can take the lock, whoever created the file.
        descriptor = os.open(self.folder / "lock", os.O_RDONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically, even if the program is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
