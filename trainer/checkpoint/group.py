"""The few things ranks tell each other about checkpoints, over a group of their own; one process needs no group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Group:
    rank: int
    world_size: int
    handle: Any = None

    def through_first(self, mine: T, decide: Callable[[list[T]], Sequence[R]]) -> R:
        """Rank 0 sees what all ranks have and decides for each; its error is everybody's."""
        if self.handle is None:
            return decide([mine])[0]
        gathered: list[Any] = [None] * self.world_size
        dist.gather_object(mine, gathered if self.rank == 0 else None, dst=0, group=self.handle)
        answers: list[Any] = []
        if self.rank == 0:
            try:
                answers = [(None, answer) for answer in decide(gathered)]
            # The other ranks wait for an answer, whatever it is.
            except Exception as problem:
                answers = [(problem, None)] * self.world_size
        received: list[Any] = [None]
        dist.scatter_object_list(received, answers if self.rank == 0 else None, src=0, group=self.handle)
        error, answer = received[0]
        if error is not None:
            raise error
        return cast("R", answer)

    def all(self, mine: T) -> list[T]:
        if self.handle is None:
            return [mine]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, mine, group=self.handle)
        return gathered

    def from_first(self, make: Callable[[], T]) -> T:
        return self.through_first(None, lambda _: [make()] * self.world_size)

    def highest(self, values: Sequence[int]) -> list[int]:
        """Of each of these numbers, the highest of any rank: cheap, for use in every save."""
        if self.handle is None:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.handle)
        return [int(number) for number in numbers]
