"""A file on a machine of a rehearsal."""

from __future__ import annotations

from typing import NamedTuple


class File(NamedTuple):
    """Content and mode of a file on a machine."""

    content: str
    mode: int = 0o644
