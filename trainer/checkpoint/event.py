"""What became of a save, told to the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# written: this rank's part is on the disk (ranks other than 0). published: all parts are, and a resume finds the
# checkpoint (rank 0). failed: this save came to nothing, the last good one stays. restarted: there is a new writer.
Kind = Literal["written", "published", "failed", "restarted"]


@dataclass(frozen=True)
class Event:
    kind: Kind
    step: int
    message: str
    seconds: float = 0.0
    bytes: int = 0
