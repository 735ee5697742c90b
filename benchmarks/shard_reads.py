"""Compare reading samples from token shards with the same reads of files that are mapped into memory.

    python -m benchmarks.shard_reads [--samples 40000] [--seq-len 2048] [--rounds 7] [--json FILE]

Both read the same samples, each once and in a random order, from files that are in the page cache. They take turns, and
processor time is measured, because wall time says little on a busy machine; the medians are compared. Files are mapped
anew in each round, because a run reads each sample once in an epoch; those that were mapped before are mapped once for
all rounds. Needs numpy only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from statistics import median
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, report
from trainer.data import index
from trainer.data.index import Index, Shard
from trainer.data.tokens import TokenShards

SHARDS = 8
SHARD_TOKENS = 25_000_000
BATCH = 32
THREADS = 2
Fetch = Callable[[NDArray[np.int64]], object]


def write_shards(folder: Path) -> None:
    """Write shards of random tokens and their index."""
    shards = []
    for number in range(SHARDS):
        tokens = np.random.default_rng(number).integers(0, 50_000, SHARD_TOKENS, dtype=np.uint16)
        tokens.tofile(folder / f"shard-{number:05d}.bin")
        checksum = sha256(tokens.tobytes()).hexdigest()
        shards.append(Shard(f"shard-{number:05d}.bin", SHARD_TOKENS, int(tokens.max()), checksum))
    index.write(folder, Index("uint16", 50_000, "random", None, tuple(shards)))


class MappedShards:
    """The same samples from mapped files."""

    def __init__(self, folder: Path, seq_len: int) -> None:
        self._arrays = [np.memmap(path, "<u2", mode="r") for path in sorted(folder.glob("*.bin"))]
        self._seq_len = seq_len
        self._ends = np.cumsum([(len(array) - 1) // seq_len for array in self._arrays])

    def fetch(self, ids: NDArray[np.int64]) -> object:
        """Return inputs and targets of samples."""
        tokens = np.empty((len(ids), self._seq_len + 1), np.int64)
        numbers = np.searchsorted(self._ends, ids, side="right").tolist()
        for row, number, sample in zip(tokens, numbers, ids.tolist(), strict=True):
            start = (sample - (int(self._ends[number - 1]) if number else 0)) * self._seq_len
            row[:] = self._arrays[number][start : start + self._seq_len + 1]
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def measure(fetch: Fetch, ids: NDArray[np.int64], threads: int) -> float:
    """Return the processor time per sample of threads that read batches, in microseconds."""

    def read(number: int) -> None:
        for batch in ids[number::threads]:
            fetch(batch)

    workers = [Thread(target=read, args=(number,)) for number in range(threads)]
    began = time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.process_time() - began) / ids.size * 1e6


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder)
        source = TokenShards(name, options.seq_len, 50_000)
        ids = np.random.default_rng(1).permutation(source.length)[: options.samples // BATCH * BATCH].reshape(-1, BATCH)
        mapped_before = MappedShards(folder, options.seq_len)
        for threads in (1, THREADS):
            ours, mapped, before = [], [], []
            for _ in range(options.rounds + 1):
                mapped.append(measure(MappedShards(folder, options.seq_len).fetch, ids, threads))
                before.append(measure(mapped_before.fetch, ids, threads))
                ours.append(measure(lambda batch: source.fetch(batch, None), ids, threads))
            # The first round warms up.
            first, again, measured = (median(values[1:]) for values in (mapped, before, ours))
            where = f"{threads} thread{'s' if threads > 1 else ''}"
            figures += [
                Figure(f"sample from a mapped file, {where}", first, "us"),
                Figure(f"sample from a file that was mapped before, {where}", again, "us"),
                Figure(f"sample from a shard, {where}", measured, "us", "the two above"),
                Figure(f"more time than from a mapped file, {where}", (measured / first - 1) * 100, "%", "", 5.0),
            ]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    raise SystemExit(main())
