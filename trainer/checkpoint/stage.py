"""A buffer in shared memory with the content of a rank's shard: filled during the next step, read by the writer."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainer import host, safetensors_file
from trainer.checkpoint.plan import SavePlan, ShardPart
from trainer.checkpoint.space import format_size

# Prefixes of tensors that only the optimizer changes, so they can be copied during the next forward and backward pass.
# All others are copied before `fill` returns: the running means of a batch norm change in the forward pass.
CHANGED_BY_UPDATE = ("model.", "optim.")

CopyPair = tuple[Any, Any]
"""Destination in the buffer and source tensor."""


class StagingBuffer:
    """One buffer for all saves, because pinning memory is expensive and the writer keeps its mapping."""

    def __init__(self, size: int) -> None:
        self.size = size
        available = host.available_memory()
        if available < size:
            # The kernel would hand out the pages anyway, and then kill a process to get them back.
            message = f"{format_size(size)} of memory needed, {format_size(available)} available"
            raise OSError(errno.ENOMEM, message)
        # A file without a name disappears with the last process that holds it, even if that process is killed.
        self.handle = os.memfd_create("checkpoint")
        os.posix_fallocate(self.handle, 0, size)
        self._bytes = mmap.mmap(self.handle, size)
        self._image = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._is_pinned = torch.cuda.is_initialized() and _pin(self._image)
        self._stream: Any = None
        self._device_copied: Any = None
        self._host_copied = threading.Event()
        self._host_copied.set()
        self._thread = threading.Thread()

    def fill(self, plan: SavePlan, tensors: Mapping[str, torch.Tensor], on_filled: Callable[[str], None]) -> None:
        """Start copying; a thread calls `on_filled` when it is done, with an error message or an empty string."""
        self._bytes[: len(plan.head)] = plan.head
        plan.planner.set_up_planner(dict(tensors), is_coordinator=False)
        later: list[CopyPair] = []
        at_once: list[CopyPair] = []
        for part in plan.parts:
            pair = (self._locate(part), plan.planner.resolve_data(part.item).detach())
            (later if part.item.index.fqn.startswith(CHANGED_BY_UPDATE) else at_once).append(pair)
        _copy(at_once)
        self._device_copied = self._copy_from_device([*at_once, *later], later)
        self._host_copied.clear()
        on_host = [pair for pair in later if pair[1].device.type == "cpu"]
        self._thread = threading.Thread(
            target=self._finish, args=(on_host, on_filled), name="checkpoint-stage", daemon=True
        )
        self._thread.start()

    def before_update(self) -> None:
        """Wait until the update may change the tensors; a GPU waits in its stream while the host continues."""
        self._host_copied.wait()
        if self._device_copied is not None:
            torch.cuda.current_stream().wait_event(self._device_copied)

    def close(self) -> None:
        """Finish the copy under way and release the memory."""
        if self._thread.is_alive():
            self._thread.join()
        if self._is_pinned:
            _unpin(self._image)
        os.close(self.handle)

    def _locate(self, part: ShardPart) -> Any:
        dtype = getattr(torch, safetensors_file.DTYPES[part.dtype][0])
        return self._image[part.start : part.end].view(dtype).view(part.shape)

    def _copy_from_device(self, pairs: list[CopyPair], later: list[CopyPair]) -> Any:
        """Start the copies in a stream of their own, parallel to training; return the event after the last of them."""
        devices = {source.device for _, source in pairs if source.device.type == "cuda"}
        if not devices:
            return None
        self._stream = self._stream or torch.cuda.Stream(devices.pop())
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            on_device = [pair for pair in later if pair[1].device.type == "cuda"]
            _copy(on_device)
            for _, source in on_device:
                source.record_stream(self._stream)
            return self._stream.record_event()

    def _finish(self, on_host: list[CopyPair], on_filled: Callable[[str], None]) -> None:
        problem = ""
        try:
            _copy(on_host)
            self._host_copied.set()
            if self._device_copied is not None:
                self._device_copied.synchronize()
        # A save that fails must not stop the training.
        except Exception as error:
            problem = f"could not copy the state: {error}"
        finally:
            self._host_copied.set()
        on_filled(problem)


def _copy(pairs: list[CopyPair]) -> None:
    for destination, source in pairs:
        destination.copy_(source, non_blocking=True)


def _pin(image: Any) -> bool:
    """Pin the memory and return whether that worked; copies from a GPU into pageable memory block its work."""
    return int(torch.cuda.cudart().cudaHostRegister(image.data_ptr(), image.numel(), 0)) == 0


def _unpin(image: Any) -> None:
    torch.cuda.cudart().cudaHostUnregister(image.data_ptr())
