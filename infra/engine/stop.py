"""The error that ends a command: what is wrong, the fix and the exit code."""

from __future__ import annotations

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class Stop(Exception):
    """An error that is shown to the user without a traceback."""

    def __init__(self, what: str, fix: str = "", code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.code = code
