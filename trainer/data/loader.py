"""Load the batches of one rank in the run's order, prepared by threads and copied to the device in advance.

The state of a loader is a single integer, its position.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.mixture import Mixture, draw_samples, fetch_draws
from trainer.data.order import Ids, share_batch
from trainer.data.source import Source

# A read from a dead file server may never return, and the run must be able to end anyway.
_JOIN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch."""

    tensors: dict[str, torch.Tensor]
    ids: Ids
    position: int
    """Position of the first sample after the global batch."""
    source_counts: dict[str, int]
    """Samples of each data set of a mixture in the global batch; else empty."""


class Loader:
    """An endless iterator of batches: epochs follow each other, and a batch may span two of them.

    Checkpoints store `position`.
    """

    def __init__(  # noqa: PLR0913
        self,
        source: Source,
        seed: int,
        batch_size: int,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        position: int = 0,
        workers: int = 2,
        ahead: int = 2,
        window: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """`window` is the number of shards that are shuffled together; 0 means all."""
        if source.length < 1:
            raise ConfigError([ConfigProblem("data", "the data set has no samples", "provide at least one")])
        self.position = position
        self._source = source
        self._seed = seed
        self._batch_size, self._dp_size, self._window = batch_size, dp_size, window
        self._workers, self._ahead, self._device = workers, ahead, torch.device(device)
        self._factory = self._make_factory(dp_rank)
        self._closed = False
        self._prefetcher = self._start_prefetcher() if workers else None

    @property
    def is_remote(self) -> bool:
        """Whether a batch may take minutes, because samples are read over a network."""
        return self._source.is_remote

    @property
    def source_counts(self) -> dict[str, int]:
        """Samples of each data set of a mixture so far, over all ranks, by the name of the metric; else empty."""
        counts = _count_samples(self._source, self._seed, self.position)
        return {f"samples/{name}": count for name, count in counts.items()}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        prefetcher = self._prefetcher
        copied = prefetcher.take(self.position) if prefetcher else self._factory.make(self.position)
        self.position = copied.batch.position
        return copied.wait()

    def read_share(self, position: int, dp_rank: int) -> dict[str, torch.Tensor]:
        """Read the samples that another rank has at a position, without changing the position of this loader."""
        return self._make_factory(dp_rank).make(position).wait().tensors

    def seek(self, position: int) -> None:
        """Continue at another position, before or after this one."""
        self.position = position
        if self._prefetcher:
            self._prefetcher.close()
            self._prefetcher = self._start_prefetcher()

    def close(self) -> None:
        self._closed = True
        if self._prefetcher:
            self._prefetcher.close()

    def _make_factory(self, dp_rank: int) -> _BatchFactory:
        part = share_batch(self._batch_size, dp_rank, self._dp_size)
        return _BatchFactory(self._source, self._seed, self._batch_size, part, window=self._window, device=self._device)

    def _start_prefetcher(self) -> _Prefetcher:
        # Each thread makes a whole batch, so fewer batches than threads would leave some idle.
        ahead = max(self._ahead, self._workers)
        prefetcher = _Prefetcher(self._factory.make, self.position, self._batch_size, self._workers, ahead)
        # The finalizer also runs at exit: a thread inside torch would crash the process when the interpreter ends.
        weakref.finalize(self, prefetcher.close)
        return prefetcher


def move_batch(batch: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy the tensors of a batch to the device, without waiting if they are in pinned memory.

    `documents` stay where they are: the host checks where documents end, and copies those of a micro-batch if needed.
    """
    return {
        name: tensor if name == "documents" else tensor.to(device, non_blocking=True) for name, tensor in batch.items()
    }


@dataclass(frozen=True)
class _CopiedBatch:
    """A batch whose copy to the device may not have finished."""

    batch: Batch
    event: Any = None
    """CUDA event at the end of the copy."""

    def wait(self) -> Batch:
        """Make the computing stream, but not the host, wait for the copy."""
        if self.event is not None:
            stream = torch.cuda.current_stream(next(iter(self.batch.tensors.values())).device)
            stream.wait_event(self.event)
            for tensor in self.batch.tensors.values():
                if tensor.is_cuda:
                    tensor.record_stream(stream)
        return self.batch


class _BatchFactory:
    """A maker of batches, at any position."""

    def __init__(  # noqa: PLR0913
        self, source: Source, seed: int, batch_size: int, part: slice, *, window: int, device: torch.device
    ) -> None:
        self._source = source
        self._seed = seed
        self._batch_size = batch_size
        self._part = part
        self._window = window
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, position: int) -> _CopiedBatch:
        first = position + self._part.start
        draws = draw_samples(self._source, self._seed, first, self._part.stop - self._part.start, self._window)
        ids, arrays = draws.ids, fetch_draws(self._source, draws)
        tensors = {name: torch.as_tensor(array).contiguous() for name, array in arrays.items()}
        after = position + self._batch_size
        before = _count_samples(self._source, self._seed, position)
        counts = {n: c - before[n] for n, c in _count_samples(self._source, self._seed, after).items()}
        if self._stream is None:
            return _CopiedBatch(Batch(move_batch(tensors, self._device), ids, after, counts))
        # Without this, the thread would pin memory through GPU 0 and create a context of half a gigabyte there.
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(self._stream):
            copies = move_batch({name: tensor.pin_memory() for name, tensor in tensors.items()}, self._device)
            return _CopiedBatch(Batch(copies, ids, after, counts), self._stream.record_event())


def _count_samples(source: Source, seed: int, position: int) -> dict[str, int]:
    """Return how many samples of each data set of a mixture come before a position; else empty."""
    return source.count_samples(seed, position) if isinstance(source, Mixture) else {}


class _Prefetcher:
    """Threads that make up to `window` batches before they are needed."""

    def __init__(
        self, make: Callable[[int], _CopiedBatch], position: int, batch_size: int, workers: int, window: int
    ) -> None:
        self._make = make
        self._batch_size = batch_size
        self._window = window * batch_size
        self._claimed = position
        self._taken = position
        self._results: dict[int, _CopiedBatch | BaseException] = {}
        self._closed = False
        self._change = threading.Condition()
        self._threads = [threading.Thread(target=self._work, name=f"data-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def take(self, position: int) -> _CopiedBatch:
        with self._change:
            self._change.wait_for(lambda: position in self._results or self._closed)
            result = self._results.get(position)
            if isinstance(result, BaseException):
                raise result  # the error is kept, so that a second attempt fails too instead of waiting forever
            if result is None:
                raise RuntimeError("the loader was closed while waiting for a batch")
            del self._results[position]
            self._taken = position + self._batch_size
            self._change.notify_all()
            return result

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._results.clear()

    def _work(self) -> None:
        while (position := self._claim()) is not None:
            result: _CopiedBatch | BaseException
            try:
                result = self._make(position)
            except BaseException as error:
                result = error
            with self._change:
                self._results[position] = result
                self._change.notify_all()

    def _claim(self) -> int | None:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._claimed < self._taken + self._window)
            if self._closed:
                return None
            position, self._claimed = self._claimed, self._claimed + self._batch_size
            return position
