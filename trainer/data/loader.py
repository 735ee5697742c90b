"""Batches of one rank in the run's order, read ahead by threads and already on the device. Its state is one integer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.order import Ids, sample_ids, share
from trainer.data.source import Arrays, Source

# A read from a dead file server may never return; the run must be able to end all the same.
_JOIN_S = 5.0


@dataclass(frozen=True)
class Batch:
    """This rank's part of a global batch; `position` is that of the sample after the global batch."""

    tensors: dict[str, torch.Tensor]
    ids: Ids
    position: int


class Loader:
    """Endless: epochs follow each other, and a batch may span two. `position` is what a checkpoint keeps."""

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
        device: torch.device | str = "cpu",
    ) -> None:
        if source.length < 1:
            raise ConfigError([ConfigProblem("data", "the source has no samples", "give it at least one")])
        self.position = position
        self._maker = _Maker(source, seed, batch_size, share(batch_size, dp_rank, dp_size), torch.device(device))
        self._ahead: _Ahead | None = None
        self._closed = False
        if workers:
            # Each thread makes a whole batch, so fewer batches than threads would leave some idle.
            self._ahead = _Ahead(self._maker.make, position, batch_size, workers, max(ahead, workers))
            # Also at exit: a thread that is inside torch when the interpreter goes takes the process down with it.
            weakref.finalize(self, self._ahead.close)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        made = self._ahead.take(self.position) if self._ahead else self._maker.make(self.position)
        self.position = made.batch.position
        return made.hand_over()

    def close(self) -> None:
        self._closed = True
        if self._ahead:
            self._ahead.close()


@dataclass(frozen=True)
class _Made:
    """A batch whose copy to the device may still be under way; `copied` is the CUDA event of its end."""

    batch: Batch
    copied: Any = None

    def hand_over(self) -> Batch:
        """The stream that computes waits for the copy; the host does not."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(next(iter(self.batch.tensors.values())).device)
            stream.wait_event(self.copied)
            for tensor in self.batch.tensors.values():
                tensor.record_stream(stream)
        return self.batch


class _Maker:
    """The batch at a position."""

    def __init__(self, source: Source, seed: int, batch_size: int, part: slice, device: torch.device) -> None:
        self._source = source
        self._seed = seed
        self._batch_size = batch_size
        self._part = part
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, position: int) -> _Made:
        first = position + self._part.start
        ids = sample_ids(self._seed, first, self._part.stop - self._part.start, self._source.length)
        arrays = self._fetch(ids, first)
        tensors = {name: torch.as_tensor(array).contiguous() for name, array in arrays.items()}
        after = position + self._batch_size
        if self._stream is None:
            return _Made(Batch({name: tensor.to(self._device) for name, tensor in tensors.items()}, ids, after))
        # Without this a thread pins memory through GPU 0, and makes a context there that costs half a gigabyte.
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(self._stream):
            there = {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            return _Made(Batch(there, ids, after), self._stream.record_event())

    def _fetch(self, ids: Ids, first: int) -> Arrays:
        """One call for each epoch that the positions from `first` on touch."""
        length = self._source.length
        cuts = range(length - first % length, len(ids), length)
        parts = [
            self._source.fetch(part, first // length + number) for number, part in enumerate(np.split(ids, list(cuts)))
        ]
        return (
            parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )


class _Ahead:
    """Threads that make batches before they are asked for, at most `window` of them."""

    def __init__(self, make: Callable[[int], _Made], position: int, batch_size: int, workers: int, window: int) -> None:
        self._make = make
        self._batch_size = batch_size
        self._window = window * batch_size
        self._claimed = position
        self._taken = position
        self._made: dict[int, _Made | BaseException] = {}
        self._closed = False
        self._change = threading.Condition()
        self._threads = [threading.Thread(target=self._work, name=f"data-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def take(self, position: int) -> _Made:
        with self._change:
            self._change.wait_for(lambda: position in self._made or self._closed)
            made = self._made.get(position)
            if isinstance(made, BaseException):
                raise made  # it stays where it is: a second try must fail too, not wait for ever
            if made is None:
                raise RuntimeError("the loader was closed while a batch was waited for")
            del self._made[position]
            self._taken = position + self._batch_size
            self._change.notify_all()
            return made

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._made.clear()

    def _work(self) -> None:
        while (position := self._claim()) is not None:
            made: _Made | BaseException
            try:
                made = self._make(position)
            except BaseException as error:
                made = error
            with self._change:
                self._made[position] = made
                self._change.notify_all()

    def _claim(self) -> int | None:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._claimed < self._taken + self._window)
            if self._closed:
                return None
            position, self._claimed = self._claimed, self._claimed + self._batch_size
            return position
