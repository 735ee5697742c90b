"""One shard: made from its part of the text, or found finished and taken over."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.data.index import DTYPES, Shard, publish
from trainer.data.inputs import Range, pieces
from trainer.data.tokenizer import Tokenizer

_READ = 1 << 22


@dataclass(frozen=True)
class Task:
    """`known` is what an index says of this shard, where an earlier run wrote one."""

    number: int
    ranges: tuple[Range, ...]
    known: Shard | None = None

    @property
    def size(self) -> int:
        return sum(one.end - one.start for one in self.ranges)

    @property
    def file(self) -> str:
        return f"shard-{self.number:05d}.bin"


def finished(folder: Path, task: Task, dtype: str) -> Shard | None:
    """The shard, if it has its final name: it got it only once it was whole. What an index says of it must hold."""
    path = folder / task.file
    if not path.exists():
        return None
    width = np.dtype(DTYPES[dtype]).itemsize
    summary = _Summary()
    with path.open("rb") as file:
        while block := file.read(_READ):
            summary.add(np.frombuffer(block, DTYPES[dtype], len(block) // width), block)
    shard = summary.shard(task.file, width)
    return shard if task.known in {None, shard} else None


def make(folder: Path, task: Task, tokenizer: Tokenizer, text_key: str, report: Callable[[int], None]) -> Shard:
    """Written under another name, flushed to the disk, renamed: a kill at any point leaves a whole shard or none."""
    partial = folder / f"{task.file}.partial"
    dtype = DTYPES[tokenizer.dtype]
    end = np.array([] if tokenizer.eos is None else [tokenizer.eos], dtype)
    summary = _Summary()
    with partial.open("wb") as file:
        for piece in pieces(task.ranges, text_key):
            tokens = tokenizer.encode(piece.text).astype(dtype)
            for array in (tokens, end) if piece.ends else (tokens,):
                raw = array.tobytes()
                file.write(raw)
                summary.add(array, raw)
            report(piece.size)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, folder / task.file)
    return summary.shard(task.file, np.dtype(dtype).itemsize)


class _Summary:
    def __init__(self) -> None:
        self._bytes = 0
        self._largest = 0
        self._digest = hashlib.sha256()

    def add(self, tokens: NDArray[np.unsignedinteger], raw: bytes) -> None:
        self._bytes += len(raw)
        self._digest.update(raw)
        if tokens.size:
            self._largest = max(self._largest, int(tokens.max()))

    def shard(self, file: str, width: int) -> Shard:
        return Shard(file, self._bytes // width, self._largest, self._digest.hexdigest())
