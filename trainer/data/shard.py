"""Write a shard of tokens from its part of the text, or recognise that it is already complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.index import DTYPES, Shard, publish
from trainer.data.inputs import FileRange, read_pieces
from trainer.data.tokenizer import Tokenizer

_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class ShardTask:
    """A shard to make: its number and its part of the text."""

    number: int
    ranges: tuple[FileRange, ...]
    expected: Shard | None = None
    """The entry of this shard in the index, if an earlier run wrote one."""

    @property
    def size(self) -> int:
        return sum(file_range.end - file_range.start for file_range in self.ranges)

    @property
    def file(self) -> str:
        return f"shard-{self.number:05d}.bin"


def find_finished(folder: Path, task: ShardTask, dtype: str) -> Shard | None:
    """Return the shard if it is complete, else None.

    A shard gets its final name only when it is complete; if the index describes it, the description must match.
    """
    path = folder / task.file
    if not path.exists():
        return None
    width = np.dtype(DTYPES[dtype]).itemsize
    summary = _Summary()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            summary.add(np.frombuffer(block, DTYPES[dtype], len(block) // width), block)
    shard = summary.describe(task.file, width)
    return shard if task.expected in {None, shard} else None


def write_shard(
    folder: Path, task: ShardTask, tokenizer: Tokenizer, text_key: str, report: Callable[[int], None]
) -> Shard:
    """Write a shard under a temporary name, flush it to disk and rename it.

    If the process is killed at any point, there is either a complete shard or none. `report` is called with the number
    of input bytes as they are read.
    """
    partial = folder / f"{task.file}.partial"
    dtype = DTYPES[tokenizer.dtype]
    eos = np.array([] if tokenizer.eos is None else [tokenizer.eos], dtype)
    summary = _Summary()
    with partial.open("wb") as file:
        for piece in read_pieces(task.ranges, text_key):
            tokens = tokenizer.encode(piece.text).astype(dtype)
            for array in (tokens, eos) if piece.ends else (tokens,):
                raw = array.tobytes()
                file.write(raw)
                summary.add(array, raw)
            report(piece.size)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, folder / task.file)
    return summary.describe(task.file, np.dtype(dtype).itemsize)


class _Summary:
    """Size, largest token and checksum of a shard, updated block by block."""

    def __init__(self) -> None:
        self._bytes = 0
        self._largest = 0
        self._digest = hashlib.sha256()

    def add(self, tokens: NDArray[np.unsignedinteger], raw: bytes) -> None:
        self._bytes += len(raw)
        self._digest.update(raw)
        if tokens.size:
            self._largest = max(self._largest, int(tokens.max()))

    def describe(self, file: str, width: int) -> Shard:
        return Shard(file, self._bytes // width, self._largest, self._digest.hexdigest())
