"""The communication hook of torch's DDP: buckets are compressed by a thread while the backward pass continues.

DDP calls the hook when the gradients of a bucket are ready, in the same order on all ranks, and waits for all buckets
at the end of the backward pass. A single thread averages them one after the other, so the collectives of all ranks stay
in the same order and the methods can be written without callbacks. On a GPU, the thread works on a stream of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.futures

from trainer.compression.compression import Compression, Part

_Jobs = SimpleQueue[Callable[[], None] | None]


class CompressionHook:
    """A communication hook of DDP whose thread averages buckets in the order in which they are ready."""

    def __init__(self, compression: Compression, names: Mapping[Any, str], device: torch.device) -> None:
        """Start the thread; `names` are the names of the parameters."""
        self._compression, self._names = compression, names
        self._devices = [device] if device.type == "cuda" else []
        self._stream: Any = torch.cuda.Stream(device) if self._devices else None
        self._error: Exception | None = None
        self._jobs: _Jobs = SimpleQueue()
        # A daemon does not delay the end of a process whose peers have died.
        Thread(target=_serve, args=(self._jobs,), name="compression", daemon=True).start()
        # The thread has no reference to the hook, so that both end, and residuals are freed, along with the engine.
        weakref.finalize(self, self._jobs.put, None)

    def average(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses other types
        """Start to average a bucket and return its future."""
        parts = [Part(self._names[parameter], tuple(parameter.shape)) for parameter in bucket.parameters()]
        values = bucket.buffer()
        future: Any = torch.futures.Future(devices=self._devices)
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record()
        self._jobs.put(lambda: self._average(values, parts, ready, future))
        return future

    def raise_error(self) -> None:
        """Raise the first error of the backward pass that has ended: its gradients are not averages."""
        if self._error is not None:
            raise self._error

    def _average(self, values: Any, parts: list[Part], ready: Any, future: Any) -> None:
        with torch.cuda.stream(self._stream):
            try:
                if ready is not None:
                    self._stream.wait_event(ready)
                # After an error, other ranks may wait in another collective than this rank would begin.
                if self._error is None:
                    self._compression.average(values, parts)
            except Exception as error:  # DDP would replace an exception by one of its own
                self._error = error
            future.set_result(values)


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        # While the thread waits for the next job, this one would keep the hook alive.
        del job
