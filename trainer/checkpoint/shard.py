"""Bytes in memory to one durable file: written past the page cache and hashed at the same time."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from trainer.checkpoint.manifest import FileSum, sums

BLOCK = 8 << 20
# The page cache would take a copy of every byte and throw out training data for it. Direct writes need whole pages.
PAGE = 4096


def write_shard(path: Path, image: memoryview) -> FileSum:
    found: list[FileSum] = []
    hashing = threading.Thread(target=lambda: found.append(sums(image)))
    hashing.start()
    try:
        _write(path, image)
    finally:
        hashing.join()
    return found[0]


def _write(path: Path, image: memoryview) -> None:
    whole = image.nbytes - image.nbytes % PAGE
    written = _write_direct(path, image[:whole])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.lseek(handle, written, os.SEEK_SET)
        _write_all(handle, image[written:])
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_direct(path: Path, image: memoryview) -> int:
    """How much of it was written: nothing where the file system knows no direct writes (tmpfs, some network ones)."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0
        raise
    try:
        _write_all(handle, image)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0
        raise
    finally:
        os.close(handle)
    return image.nbytes


def _write_all(handle: int, image: memoryview) -> None:
    at = 0
    while at < image.nbytes:
        at += os.write(handle, image[at : at + BLOCK])
