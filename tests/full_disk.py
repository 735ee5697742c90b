"""A disk that is full when a file is written to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


def fill_disk(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Let the disk report that it is full once a new version of a file is written; other files are not affected."""
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if file.name in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
