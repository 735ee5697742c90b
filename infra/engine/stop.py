"""The end of a command that cannot go on: what is in the way, what to do about it, and the exit code."""

from __future__ import annotations

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class Stop(Exception):
    """Shown as it is, without a traceback."""

    def __init__(self, what: str, fix: str = "", code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.code = code
