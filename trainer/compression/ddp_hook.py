"""The communication hook of torch's DDP: buckets are compressed by a thread while the backward pass continues.

DDP calls the hook when the gradients of a bucket are ready, in the same order on all ranks, and waits for all buckets
at the end of the backward pass. A single thread averages them one after the other, so the collectives of all ranks stay
in the same order and the methods can be written without callbacks. On a GPU, the thread works on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.futures

from trainer.compression.compression import Compression, Part

Hook = Callable[[Any, Any], Any]


def make_hook(compression: Compression, names: Mapping[Any, str], device: torch.device) -> Hook:
    """Return a function for `register_comm_hook`; `names` are the names of the parameters."""
    worker = _Worker(compression, device)

    def average(_state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses other types
        parts = [Part(names[parameter], tuple(parameter.shape)) for parameter in bucket.parameters()]
        return worker.start(bucket.buffer(), parts)

    return average


class _Worker:
    """A thread that averages buckets in the order in which they are ready."""

    def __init__(self, compression: Compression, device: torch.device) -> None:
        self._compression = compression
        self._devices = [device] if device.type == "cuda" else []
        self._stream: Any = torch.cuda.Stream(device) if self._devices else None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # A daemon does not delay the end of a process whose peers have died.
        Thread(target=self._serve, name="compression", daemon=True).start()

    def start(self, bucket: Any, parts: list[Part]) -> Any:
        """Return the future of the averaged bucket."""
        future: Any = torch.futures.Future(devices=self._devices)
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            ready.record()
        self._jobs.put(lambda: self._average(bucket, parts, ready, future))
        return future

    def _serve(self) -> None:
        while True:
            self._jobs.get()()

    def _average(self, bucket: Any, parts: list[Part], ready: Any, future: Any) -> None:
        try:
            with torch.cuda.stream(self._stream):
                if ready is not None:
                    self._stream.wait_event(ready)
                self._compression.average(bucket, parts)
                future.set_result(bucket)
        except Exception as error:  # the thread that waits for the future raises it
            future.set_exception(error)
