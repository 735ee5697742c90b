"""Processes of this machine."""

from __future__ import annotations

from pathlib import Path


def process_lives(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not, as its parent may never reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
