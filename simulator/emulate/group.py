"""A process group of ranks that take turns in this process: it notes what each gives, and sums at the last."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from simulator.emulate.fold import Fold, fold_for, held_bytes
from simulator.emulate.reduce import Algorithm, all_reduce, rounds_of

MESSAGES_UP_TO = 8
"""Ranks for which every message is sent and every rank's result compared; beyond, only the sum is made."""


class Group(dist.ProcessGroup):
    """What torch's DistributedDataParallel talks to. Ranks take turns from the last to 0, each with all its buckets."""

    def __init__(self, ranks: int, per_node: int, algorithm: Algorithm) -> None:
        super().__init__(0, ranks)
        self._ranks = ranks
        self._per_node = per_node
        self._algorithm = algorithm
        self._buckets: list[Fold] = []
        self._next = 0
        self.turn = -1
        """The rank that runs; -1 while nobody does, when sums mean nothing."""
        self.sizes: list[int] = []
        """Bytes of each all-reduce of the last step, in order."""

    def held_bytes(self, size: int) -> int:
        """What waits at most, of `size` bytes of gradients."""
        if self._ranks <= MESSAGES_UP_TO:
            return size * self._ranks
        return held_bytes(self._algorithm, self._ranks, self._per_node, size)

    def begin(self, rank: int) -> None:
        if rank == self._ranks - 1:
            self._buckets, self.sizes = [], []
        self.turn, self._next = rank, 0

    def sum(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Of one value per rank, as an all-reduce of it would."""
        fold = self._fold()
        for rank in reversed(range(self._ranks)):
            fold.add(rank, values[rank].flatten())
        return fold.total().view_as(values[0])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # noqa: ARG002
        (tensor,) = tensors
        if self.turn >= 0:
            self._give(tensor)
        return _Done(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # noqa: ARG002
        """All ranks are this process: what rank 0 has, all have."""
        return _Done(tensors)

    def getBackendName(self) -> str:
        return "virtual"

    def _give(self, tensor: torch.Tensor) -> None:
        if self.turn == self._ranks - 1:
            self._buckets.append(self._fold())
            self.sizes.append(tensor.nbytes)
        bucket = self._buckets[self._next]
        bucket.add(self.turn, tensor)
        if self.turn == 0:
            tensor.copy_(bucket.total())
        self._next += 1

    def _fold(self) -> Fold:
        if self._ranks <= MESSAGES_UP_TO:
            return _Messages(self._algorithm, self._ranks, self._per_node)
        return fold_for(self._algorithm, self._ranks, self._per_node, torch.clone)


class _Messages:
    """All arrays are kept and every message is sent."""

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
            # By bits: a NaN is not equal to itself, and a run that diverges is no fault of the sum.
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
