"""The collectives by which ranks agree about checkpoints, on a separate group. A single process needs no group.

Values are exchanged as JSON, so tuples arrive as lists. A single process gets them in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.json_exchange import gather_on_first, gather_values, scatter_from_first


@dataclass(frozen=True)
class RankGroup:
    """This rank and the process group it shares with the others; `handle` is None for a single process."""

    rank: int
    world_size: int
    handle: Any = None

    def decide_on_first(self, value: Any, decide: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Let rank 0 see the values of all ranks and decide for each; an error on rank 0 is raised on all of them."""
        if self.handle is None:
            return _copy(decide([_copy(value)])[0])
        values = gather_on_first(value, self.handle)
        if self.rank > 0:
            return _open_answer(scatter_from_first([], self.handle))
        try:
            answers = [{"value": answer} for answer in decide(values)]
            json.dumps(answers)
        # The other ranks wait for an answer, so any error has to become one.
        except Exception as error:
            scatter_from_first([_describe_error(error)] * self.world_size, self.handle)
            raise
        return _open_answer(scatter_from_first(answers, self.handle))

    def run_on_first(self, function: Callable[[], Any]) -> Any:
        """Call the function on rank 0 and return its result on all ranks."""
        return self.decide_on_first(None, lambda _: [function()] * self.world_size)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on all ranks."""
        return [_copy(value)] if self.handle is None else gather_values(value, self.handle)

    def maximum(self, values: Sequence[int]) -> list[int]:
        """Return the maximum over all ranks of each of these numbers; cheap enough for every save."""
        if self.handle is None:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.handle)
        return [int(number) for number in numbers]

    def raise_together(self, error: Exception | None) -> None:
        """Raise this rank's error or, if there is none, that of the first rank that has one."""
        errors = [] if self.handle is None else self.gather(None if error is None else _describe_error(error))
        if error is not None:
            raise error
        for answer in errors:
            if answer is not None:
                _open_answer(answer)


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _describe_error(error: Exception) -> dict[str, Any]:
    """Return an answer that raises a similar error on the ranks that receive it."""
    if isinstance(error, ConfigError):
        return {"problems": [astuple(problem) for problem in error.problems]}
    if isinstance(error, OSError) and error.errno is not None:
        return {"system_error": [error.errno, error.strerror, None if error.filename is None else str(error.filename)]}
    return {"error": f"{type(error).__name__}: {error}"}


def _open_answer(answer: dict[str, Any]) -> Any:
    """Return the value of an answer, or raise the error that it describes."""
    if "problems" in answer:
        raise ConfigError([ConfigProblem(*problem) for problem in answer["problems"]])
    if "system_error" in answer:
        raise OSError(*answer["system_error"])
    if "error" in answer:
        raise RuntimeError(f"another rank failed: {answer['error']}")
    return answer["value"]
