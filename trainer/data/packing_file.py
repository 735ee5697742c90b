"""The packing of a shard as a file next to it, so that only the first start reads every token."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np

from trainer.data.file_array import FileArray, Sliceable
from trainer.data.index import publish
from trainer.data.packing import Packing, pack_shard

# Part of the file's name: change it whenever the same documents would be packed differently.
_VERSION = 1
# Start and length of each piece, and its sample.
_ROWS = 3


def load_or_pack(tokens: Sliceable, path: Path, checksum: str, eos: int, seq_len: int) -> Packing:
    """Return the packing of a shard, from its file if there is one; `path` and `checksum` are those of the shard.

    Several ranks may write the file at the same time: each writes its own, and the last one to finish replaces the
    equal file of another.
    """
    file = path.with_name(f"{path.name}.packed-{_VERSION}-{seq_len}-{eos}-{checksum[:16]}.npy")
    # A file that was damaged is replaced.
    with suppress(OSError, ValueError, EOFError):
        return _read(file)
    packing = pack_shard(tokens, eos, seq_len)
    # A read-only or full folder costs only time.
    with suppress(OSError):
        _write(file, packing)
    return packing


def _read(file: Path) -> Packing:
    # Two of the three rows stay in the file, because every rank would need memory for them.
    with file.open("rb") as opened:
        version = np.lib.format.read_magic(opened)
        shape, _, dtype = np.lib.format.read_array_header_1_0(opened)
        offset, size = opened.tell(), os.fstat(opened.fileno()).st_size
    rows, pieces = shape
    if version != (1, 0) or rows != _ROWS or size != offset + rows * pieces * dtype.itemsize:
        raise ValueError(f"{file} is damaged")
    fix = "start the run again, which writes it again"
    starts, lengths, samples = (
        FileArray(lambda: file, dtype, pieces, offset=offset + row * pieces * dtype.itemsize, fix=fix)
        for row in range(_ROWS)
    )
    numbers = samples[:]
    count = int(numbers[-1]) + 1 if pieces else 0
    return Packing(starts, lengths, np.searchsorted(numbers, np.arange(count + 1)))


def _write(file: Path, packing: Packing) -> None:
    samples = np.repeat(np.arange(packing.samples), np.diff(packing.first_pieces))
    partial = file.with_name(f"{file.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as opened:
            np.save(opened, np.stack([packing.starts[:], packing.lengths[:], samples]))
            opened.flush()
            os.fsync(opened.fileno())
        publish(partial, file)
    finally:
        partial.unlink(missing_ok=True)
