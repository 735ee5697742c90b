"""What the programs remember between two runs: small JSON files, and a lock that lets one of them act at a time."""

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
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Any]:
        """Empty where nothing was kept. A file that cannot be read is forgotten: it must not stop a launch."""
        try:
            kept: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return kept

    def keep(self, name: str, value: dict[str, Any]) -> None:
        replace(self.folder / f"{name}.json", json.dumps(value, indent=1))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by one program at a time, on one controller; the kernel gives it back when its holder is killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Read-only: slurmctld's user and root both take it, whoever made it.
        descriptor = os.open(self.folder / "lock", os.O_RDONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def replace(path: Path, text: str) -> None:
    """Whole or not at all, also when we are killed."""
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
