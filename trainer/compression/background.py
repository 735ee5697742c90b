"""A thread that compresses and averages buckets of gradients while the backward pass continues.

It takes the buckets one after the other, so the collectives of all ranks stay in the same order, and the methods can be
written without callbacks. On a GPU, it works on a stream of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch

from trainer.compression.compression import Compression, Part

_Jobs = SimpleQueue[Callable[[], None] | None]


class CompressionThread:
    """The thread of an engine, and the first error that it met."""

    def __init__(self, compression: Compression, device: torch.device) -> None:
        self._compression = compression
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._error: Exception | None = None
        self._jobs: _Jobs = SimpleQueue()
        # A daemon does not delay the end of a process whose peers have died.
        Thread(target=_serve, args=(self._jobs,), name="compression", daemon=True).start()
        # The thread has no reference to this object, so that both end, and residuals are freed, along with the engine.
        weakref.finalize(self, self._jobs.put, None)

    def start(
        self, values: torch.Tensor, parts: Sequence[Part], on_end: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Start to average a flat bucket of these parts, and return the function that waits for it or raises its error.

        On a GPU, the returned function makes the current stream wait for the average. The thread calls `on_end` at the
        end, on its stream, also after an error.
        """
        ready = None if self._stream is None else torch.cuda.current_stream().record_event()
        ended = Event()
        averaged: list[Any] = []

        def run() -> None:
            try:
                with torch.cuda.stream(self._stream):
                    self._average(values, parts, ready)
                    if on_end is not None:
                        on_end()
                    if self._stream is not None:
                        averaged.append(self._stream.record_event())
            except Exception as error:  # such as one of an earlier kernel, which CUDA reports later
                self._error = self._error or error
            finally:
                ended.set()

        def wait() -> None:
            ended.wait()
            self.raise_error()
            for event in averaged:
                torch.cuda.current_stream().wait_event(event)

        self._jobs.put(run)
        return wait

    def raise_error(self) -> None:
        """Raise the first error: gradients of the backward pass that has ended are not averages."""
        if self._error is not None:
            raise self._error

    def _average(self, values: torch.Tensor, parts: Sequence[Part], ready: Any) -> None:
        try:
            if ready is not None:
                self._stream.wait_event(ready)
            # After an error, other ranks may wait in another collective than this rank would begin.
            if self._error is None:
                self._compression.average(values, parts)
        except Exception as error:  # raised on the thread of the engine, when it waits
            self._error = error


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        # While the thread waits for the next job, this one would keep the engine alive.
        del job
