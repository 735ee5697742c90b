"""The collectives by which ranks agree about checkpoints, on a separate group. A single process needs no group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RankGroup:
    """This rank and the process group it shares with the others; `handle` is None for a single process."""

    rank: int
    world_size: int
    handle: Any = None

    def decide_on_first(self, value: T, decide: Callable[[list[T]], Sequence[R]]) -> R:
        """Let rank 0 see the values of all ranks and decide for each; an error on rank 0 is raised on all of them."""
        if self.handle is None:
            return decide([value])[0]
        values: list[Any] = [None] * self.world_size
        dist.gather_object(value, values if self.rank == 0 else None, dst=0, group=self.handle)
        answers: list[Any] = []
        if self.rank == 0:
            try:
                answers = [(None, answer) for answer in decide(values)]
            # The other ranks wait for an answer, so any error has to become one.
            except Exception as problem:
                answers = [(problem, None)] * self.world_size
        received: list[Any] = [None]
        dist.scatter_object_list(received, answers if self.rank == 0 else None, src=0, group=self.handle)
        error, answer = received[0]
        if error is not None:
            raise error
        return cast("R", answer)

    def run_on_first(self, function: Callable[[], T]) -> T:
        """Call the function on rank 0 and return its result on all ranks."""
        return self.decide_on_first(None, lambda _: [function()] * self.world_size)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, on all ranks."""
        if self.handle is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.handle)
        return values

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the maximum over all ranks of each of these numbers; cheap enough for every save."""
        if self.handle is None:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.handle)
        return [int(number) for number in numbers]
