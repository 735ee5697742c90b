"""The image of a rank's file in shared memory: filled while the next forward and backward run, read by the writer."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainer import host_memory, safetensors_file
from trainer.checkpoint.plan import Part, Plan
from trainer.checkpoint.room import text

# Only the optimizer changes these, so their copy may run until it does. Anything else is copied before `fill` returns:
# the running means of a batch norm change in forward.
CHANGED_BY_UPDATE = ("model.", "optim.")

Pair = tuple[Any, Any]


class Stage:
    """One buffer for all saves: pinned memory is dear to make, and the writer keeps its mapping."""

    def __init__(self, size: int) -> None:
        self.size = size
        left = host_memory.available()
        if left < size:
            # The kernel would take the pages all the same, and then end a process to get them back.
            raise OSError(errno.ENOMEM, f"{text(size)} of memory are needed and {text(left)} left")
        # It has no name in a file system, so it is gone with the last process that holds it, however that ends.
        self.handle = os.memfd_create("checkpoint")
        os.posix_fallocate(self.handle, 0, size)
        self._bytes = mmap.mmap(self.handle, size)
        self._image = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._pinned = torch.cuda.is_initialized() and _pin(self._image)
        self._stream: Any = None
        self._on_device: Any = None
        self._on_host = threading.Event()
        self._on_host.set()
        self._thread = threading.Thread()

    def fill(self, plan: Plan, tensors: Mapping[str, torch.Tensor], then: Callable[[str], None]) -> None:
        """Start to copy. `then` is called from another thread when all is here, with what went wrong or nothing."""
        self._bytes[: len(plan.head)] = plan.head
        plan.planner.set_up_planner(dict(tensors), is_coordinator=False)
        later: list[Pair] = []
        at_once: list[Pair] = []
        for part in plan.parts:
            pair = (self._place(part), plan.planner.resolve_data(part.item).detach())
            (later if part.item.index.fqn.startswith(CHANGED_BY_UPDATE) else at_once).append(pair)
        _copy(at_once)
        self._on_device = self._copy_from_device([*at_once, *later], later)
        self._on_host.clear()
        host = [pair for pair in later if pair[1].device.type == "cpu"]
        self._thread = threading.Thread(target=self._finish, args=(host, then), name="checkpoint-stage", daemon=True)
        self._thread.start()

    def before_update(self) -> None:
        """Return when the update may change what was to be copied. A GPU waits in its own queue, the host goes on."""
        self._on_host.wait()
        if self._on_device is not None:
            torch.cuda.current_stream().wait_event(self._on_device)

    def close(self) -> None:
        if self._thread.is_alive():
            self._thread.join()
        if self._pinned:
            _unpin(self._image)
        os.close(self.handle)

    def _place(self, part: Part) -> Any:
        dtype = getattr(torch, safetensors_file.DTYPES[part.dtype][0])
        return self._image[part.start : part.end].view(dtype).view(part.shape)

    def _copy_from_device(self, every: list[Pair], later: list[Pair]) -> Any:
        """Copies run in a stream beside the training's; what is returned comes after the last of them."""
        devices = {source.device for _, source in every if source.device.type == "cuda"}
        if not devices:
            return None
        self._stream = self._stream or torch.cuda.Stream(devices.pop())
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            mine = [pair for pair in later if pair[1].device.type == "cuda"]
            _copy(mine)
            for _, source in mine:
                source.record_stream(self._stream)
            return self._stream.record_event()

    def _finish(self, host: list[Pair], then: Callable[[str], None]) -> None:
        problem = ""
        try:
            _copy(host)
            self._on_host.set()
            if self._on_device is not None:
                self._on_device.synchronize()
        # A save that fails must not stop the training.
        except Exception as error:
            problem = f"could not copy the state: {error}"
        finally:
            self._on_host.set()
        then(problem)


def _copy(pairs: list[Pair]) -> None:
    for place, source in pairs:
        place.copy_(source, non_blocking=True)


def _pin(image: Any) -> bool:
    """Copies from a GPU run beside its work only into memory it knows; where that is refused, they are just slower."""
    return int(torch.cuda.cudart().cudaHostRegister(image.data_ptr(), image.numel(), 0)) == 0


def _unpin(image: Any) -> None:
    torch.cuda.cudart().cudaHostUnregister(image.data_ptr())
