"""Write a shard of tokens from its part of the text, or recognise that it is already complete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.index import DTYPES, Shard, publish, write_durably
from trainer.data.text_files import BadRow, FileRange, read_pieces, refuse_row
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

    @property
    def skipped_file(self) -> str:
        """Name of the list of rows that were skipped; there is none if all rows were good."""
        return f"shard-{self.number:05d}.skipped.jsonl"


@dataclass(frozen=True)
class ReadOptions:
    """How rows are read."""

    text_key: str
    """Name of the text in JSON lines and Parquet."""
    skips_bad: bool = False
    """Whether rows without text are left out and listed, instead of ending the command."""


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
    folder: Path, task: ShardTask, tokenizer: Tokenizer, options: ReadOptions, report: Callable[[int], None]
) -> Shard:
    """Write a shard under a temporary name, flush it to disk and rename it.

    If the process is killed at any point, there is either a complete shard or none. `report` is called with the number
    of input bytes as they are read. Rows that are skipped are listed in a file next to the shard.
    """
    partial = folder / f"{task.file}.partial"
    dtype = DTYPES[tokenizer.dtype]
    eos = np.array([] if tokenizer.eos is None else [tokenizer.eos], dtype)
    summary = _Summary()
    skipped: list[BadRow] = []
    with partial.open("wb") as file:
        for piece in read_pieces(task.ranges, options.text_key, skipped.append if options.skips_bad else refuse_row):
            tokens = tokenizer.encode(piece.text).astype(dtype)
            for array in (tokens, eos) if piece.ends else (tokens,):
                raw = array.tobytes()
                file.write(raw)
                summary.add(array, raw)
            report(piece.size)
        file.flush()
        os.fsync(file.fileno())
    if skipped:
        # Before the shard, so that a complete shard has a complete list.
        write_durably(folder / task.skipped_file, "".join(f"{json.dumps(asdict(row))}\n" for row in skipped))
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
