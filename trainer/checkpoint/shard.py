"""Write bytes from memory to a durable file, bypassing the page cache, and hash them at the same time."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from trainer.checkpoint.manifest import FileChecksum, compute_checksum

BLOCK_BYTES = 8 << 20
# Writes bypass the page cache, which would copy every byte and evict training data. Direct writes need whole pages.
PAGE_BYTES = 4096


def write_shard(path: Path, image: memoryview) -> FileChecksum:
    """Write the bytes to a file and return their checksum."""
    checksums: list[FileChecksum] = []
    hashing = threading.Thread(target=lambda: checksums.append(compute_checksum(image)))
    hashing.start()
    try:
        _write(path, image)
    finally:
        hashing.join()
    return checksums[0]


def _write(path: Path, image: memoryview) -> None:
    whole_pages = image.nbytes - image.nbytes % PAGE_BYTES
    written = _write_direct(path, image[:whole_pages])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.lseek(handle, written, os.SEEK_SET)
        _write_all(handle, image[written:])
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_direct(path: Path, image: memoryview) -> int:
    """Return the number of bytes written: 0 if the filesystem has no direct writes (tmpfs, some network ones)."""
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
    position = 0
    while position < image.nbytes:
        position += os.write(handle, image[position : position + BLOCK_BYTES])
