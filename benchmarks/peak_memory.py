"""The peak memory of a function that uses torch, on a GPU or a CPU.

A GPU's allocator counts for itself. On a CPU, memory is counted after each operation, in two ways:

- tensors: the storages that exist, whichever thread has freed the others. torch's profiler would not do: it misses what
  gloo's threads free, and the thread of a collective often has the last reference to its tensors;
- allocated: what all threads have allocated from the C library (glibc) and not freed. That includes the buffers of
  gloo, which copies the input of a reduce-scatter.

Memory that an operation uses only within itself is in neither of them.
"""

from __future__ import annotations

import ctypes
import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# A gloo thread frees its references to the tensors of a collective a moment after the wait for it has ended.
_GLOO_FREES_S = 0.002
_COLLECTIONS = 3


@dataclass(frozen=True)
class PeakMemory:
    """The most bytes at a time: of tensors, and of all memory that was allocated."""

    tensors: int
    allocated: int


def measure_memory(run: Callable[[], None], device: torch.device) -> PeakMemory:
    """Return the most bytes that a run allocates beyond those that exist before it."""
    # What an earlier run has left in cycles of references would be freed meanwhile, and hide as much. Finalizers leave
    # further cycles.
    for _ in range(_COLLECTIONS):
        gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        peak = torch.cuda.max_memory_allocated(device) - before
        return PeakMemory(peak, peak)
    with MemoryCount() as count:
        run()
    return PeakMemory(count.peak_tensors, count.peak_allocated)


class MemoryCount(TorchDispatchMode):
    """A context that counts the storages of all tensors that operations read or return within it."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_tensors = self.peak_allocated = 0
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._allocated_before = _read_allocated()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Operations of DTensors come back as those of their shards.
        if DTensor in types:
            return NotImplemented
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, results)):
            # DTensors compute shapes on tensors of another class, which have no memory.
            if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                self._storages[id(storage)] = weakref.ref(storage)
        if self._count_tensors() > self.peak_tensors:
            time.sleep(_GLOO_FREES_S)
            self.peak_tensors = max(self.peak_tensors, self._count_tensors())
        self.peak_allocated = max(self.peak_allocated, _read_allocated() - self._allocated_before)
        return results

    def _count_tensors(self) -> int:
        total = 0
        for key, reference in list(self._storages.items()):
            storage = reference()
            if storage is None:
                del self._storages[key]
            else:
                total += storage.nbytes()
        return total


class _AllocatorFigures(ctypes.Structure):
    """`struct mallinfo2` of glibc; of its ten numbers, the fifth is for mapped blocks and the eighth for all others."""

    _fields_ = (
        ("first_four", 4 * ctypes.c_size_t),
        ("mapped", ctypes.c_size_t),
        ("sixth_and_seventh", 2 * ctypes.c_size_t),
        ("in_heaps", ctypes.c_size_t),
        ("last_two", 2 * ctypes.c_size_t),
    )


def _read_allocated() -> int:
    """Return the bytes that all threads have allocated."""
    read = ctypes.CDLL(None).mallinfo2
    read.restype = _AllocatorFigures
    figures = read()
    return int(figures.mapped + figures.in_heaps)
