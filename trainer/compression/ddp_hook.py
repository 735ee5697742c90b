"""The communication hook of torch's DDP: buckets are compressed by a thread while the backward pass continues.

DDP calls the hook when the gradients of a bucket are ready, in the same order on all ranks, and waits for all buckets
at the end of the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.futures

from trainer.compression.background import CompressionThread
from trainer.compression.compression import Compression, Part


class CompressionHook:
    """A communication hook of DDP whose thread averages buckets in the order in which they are ready."""

    def __init__(self, compression: Compression, names: Mapping[Any, str], device: torch.device) -> None:
        """Start the thread; `names` are the names of the parameters."""
        self._thread, self._names = CompressionThread(compression, device), names
        self._devices = [device] if device.type == "cuda" else []

    def average(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses other types
        """Start to average a bucket and return its future."""
        parts = [Part(self._names[parameter], tuple(parameter.shape)) for parameter in bucket.parameters()]
        values = bucket.buffer()
        future: Any = torch.futures.Future(devices=self._devices)

        def end() -> None:
            try:
                # DDP would replace an exception by one of its own, so the future gets a result even after an error.
                future.set_result(values)
            except Exception as error:
                # On a GPU that has failed, a tensor cannot be a result; DDP would wait for one for ever.
                future.set_exception(error)
                raise

        self._thread.start(values, parts, end)
        return future

    def raise_error(self) -> None:
        """Raise the first error of the backward pass that has ended: its gradients are not averages."""
        self._thread.raise_error()
