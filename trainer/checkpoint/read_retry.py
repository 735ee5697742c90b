"""Tell files that cannot be read from files that are damaged: the former are read again, and then fail the run.

A file server that restarts, or a stale handle, says nothing about the bytes on the disk. Standard library only.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Result = TypeVar("_Result")

RETRY_WAITS_S: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
# With these errors the filesystem has answered: the file is missing, or something else has its name.
_DAMAGE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class UnreadableCheckpoint(Exception):
    """Raised if a file of a checkpoint still cannot be read after all retries; nothing is known about its content."""


def is_damage(error: OSError) -> bool:
    """Return whether the error proves that a file is not what was written; any other one may pass."""
    return error.errno in _DAMAGE


def read_with_retries(path: Path, read: Callable[[], _Result]) -> _Result:
    """Return the result of `read`; repeat it after I/O errors, and raise UnreadableCheckpoint if they do not pass.

    `path` is what it reads, for the message. Errors that mean damage are raised at once.
    """
    for wait_s in RETRY_WAITS_S:
        try:
            return read()
        except OSError as error:
            if is_damage(error):
                raise
        time.sleep(wait_s)
    try:
        return read()
    except OSError as error:
        if is_damage(error):
            raise
        raise UnreadableCheckpoint(_explain(path, error)) from error


def _explain(path: Path, error: OSError) -> str:
    tries, seconds = len(RETRY_WAITS_S) + 1, sum(RETRY_WAITS_S)
    return (
        f"{path} cannot be read: {error.strerror}, {tries} times within {seconds:g} s; an I/O error is no sign of "
        "damage, so no earlier checkpoint is used and none is removed: check the filesystem and access to it, and "
        "start again"
    )
