"""A torch process group for ranks that take turns in this process: it collects each rank's arrays and sums them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from simulator.emulate.all_reduce import Algorithm, all_reduce, rounds_of
from simulator.emulate.fold import Fold, create_fold, held_bytes

MESSAGES_MAX_RANKS = 8
"""Up to this number of ranks, every message is sent and every result compared; beyond, only the sum is computed."""


class Group(dist.ProcessGroup):
    """The process group of DistributedDataParallel; ranks take turns from the last to 0, each with all its buckets."""

    def __init__(self, ranks: int, per_node: int, algorithm: Algorithm) -> None:
        super().__init__(0, ranks)
        self._ranks = ranks
        self._per_node = per_node
        self._algorithm = algorithm
        self._buckets: list[Fold] = []
        self._next = 0
        self.turn = -1
        """The rank whose turn it is; -1 outside of turns, when all-reduces are ignored."""
        self.sizes: list[int] = []
        """Bytes of each all-reduce of the last step, in order."""

    def held_bytes(self, size: int) -> int:
        """Return the most memory that waiting gradients of `size` bytes take."""
        if self._ranks <= MESSAGES_MAX_RANKS:
            return size * self._ranks
        return held_bytes(self._algorithm, self._ranks, self._per_node, size)

    def begin(self, rank: int) -> None:
        if rank == self._ranks - 1:
            self._buckets, self.sizes = [], []
        self.turn, self._next = rank, 0

    def sum(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Return the sum of one value per rank, with the bits of an all-reduce."""
        fold = self._new_fold()
        for rank in reversed(range(self._ranks)):
            fold.add(rank, values[rank].flatten())
        return fold.total().view_as(values[0])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # noqa: ARG002
        (tensor,) = tensors
        if self.turn >= 0:
            self._contribute(tensor)
        return _Done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # noqa: ARG002
        """Return at once: all ranks are this process and have what rank 0 has."""
        return _Done(tensors)

    def getBackendName(self) -> str:
        return "virtual"

    def _contribute(self, tensor: torch.Tensor) -> None:
        if self.turn == self._ranks - 1:
            self._buckets.append(self._new_fold())
            self.sizes.append(tensor.nbytes)
        bucket = self._buckets[self._next]
        bucket.add(self.turn, tensor)
        if self.turn == 0:
            tensor.copy_(bucket.total())
        self._next += 1

    def _new_fold(self) -> Fold:
        if self._ranks <= MESSAGES_MAX_RANKS:
            return _MessageFold(self._algorithm, self._ranks, self._per_node)
        return create_fold(self._algorithm, self._ranks, self._per_node, torch.clone)


class _MessageFold:
    """Keeps all arrays and sends every message."""

    def __init__(self, algorithm: Algorithm, ranks: int, per_node: int) -> None:
        self._algorithm: Algorithm = algorithm
        self._per_node = per_node
        self._arrays: list[Any] = [None] * ranks

    def add(self, rank: int, array: torch.Tensor) -> None:
        self._arrays[rank] = array.clone()

    def total(self) -> torch.Tensor:
        first = self._arrays[0]
        rounds = rounds_of(self._algorithm, len(self._arrays), self._per_node, len(first), first.itemsize)
        all_reduce(self._arrays, rounds, torch.clone)
        for rank, array in enumerate(self._arrays):
            # Compare bits: a NaN does not equal itself, and a diverged run is not an error of the sum.
            if not torch.equal(array.view(torch.uint8), first.view(torch.uint8)):
                raise AssertionError(f"{self._algorithm}: rank {rank} does not have the sum that rank 0 has")
        return first


class _Done(Work):
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future()
        self._future.set_result(tensors)

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        return True

    def get_future(self) -> Any:
        return self._future
