"""The proof that a process still owns its run folder, asked right before it publishes or removes anything.

A writer process gets it as plain values with each save. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


class FolderLost(Exception):
    """Raised if another writer has taken over the run folder: nothing in it may be changed any more."""


@dataclass(frozen=True)
class Fence:
    """The owner's file in the lock of a run folder; without a file, nothing is checked."""

    file: str = ""
    owner_id: str = ""
    epoch: int = 0

    def check(self) -> None:
        """Raise FolderLost if another writer has taken over, and OSError if the filesystem does not tell."""
        if not self.file:
            return
        try:
            # NFS clients ask the server when a file is opened, so that one that was removed is missed at once.
            with open(self.file, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b"{}"
        if json.loads(content).get("id") != self.owner_id:
            raise FolderLost(
                f"another process has taken over {Path(self.file).parents[1]} (epoch {self.epoch} is over): "
                "nothing more is written or removed there"
            )
