"""The packing of a shard as a file next to it, so that only the first start reads every token."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.index import publish
from trainer.data.packing import Packing, pack_shard

# Part of the file's name: change it whenever the same documents would be packed differently.
_VERSION = 1


def load_or_pack(tokens: NDArray[np.unsignedinteger], path: Path, checksum: str, eos: int, seq_len: int) -> Packing:
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
    # Mapped, so that all ranks of a node share the memory.
    starts, lengths, samples = np.load(file, mmap_mode="r")
    count = int(samples[-1]) + 1 if len(samples) else 0
    return Packing(starts, lengths, np.searchsorted(samples, np.arange(count + 1)))


def _write(file: Path, packing: Packing) -> None:
    samples = np.repeat(np.arange(packing.samples), np.diff(packing.first_pieces))
    partial = file.with_name(f"{file.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as opened:
            np.save(opened, np.stack([packing.starts, packing.lengths, samples]))
            opened.flush()
            os.fsync(opened.fileno())
        publish(partial, file)
    finally:
        partial.unlink(missing_ok=True)
