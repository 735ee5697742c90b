"""The collectives by which ranks agree about checkpoints, on a separate group. A single process needs no group.

Values are exchanged as JSON, so tuples arrive as lists. A single process gets them in the same form.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.json_exchange import gather_on_first, gather_values, scatter_from_first

_Result = TypeVar("_Result")


class PeerError(RuntimeError):
    """Another rank failed, and this one fails with it."""


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

    def run_together(self, function: Callable[[], _Result]) -> _Result:
        """Call the function on every rank and return the result of this rank; every rank must call it.

        If it fails on one rank, all ranks fail: the others would wait for that one in the next collective. The error of
        the others names the rank, its host and the cause.
        """
        results, error = [], None
        try:
            results.append(function())
        except Exception as problem:
            error = problem
        errors = [] if self.handle is None else self.gather(None if error is None else _describe_here(error))
        if error is not None:
            raise error
        for rank, answer in enumerate(errors):
            if answer is not None:
                _raise_from_peer(rank, answer)
        return results[0]


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _describe_error(error: Exception) -> dict[str, Any]:
    """Return an answer that raises a similar error on the ranks that receive it."""
    if isinstance(error, ConfigError):
        return {"problems": [astuple(problem) for problem in error.problems]}
    if isinstance(error, OSError) and error.errno is not None:
        return {"system_error": [error.errno, error.strerror, None if error.filename is None else str(error.filename)]}
    return {"error": f"{type(error).__name__}: {error}"}


def _describe_here(error: Exception) -> dict[str, Any]:
    """Return the error of this rank for its peers, with its host."""
    return {**_describe_error(error), "text": f"{type(error).__name__}: {error}", "host": socket.gethostname()}


def _raise_from_peer(rank: int, answer: dict[str, Any]) -> None:
    """Raise the error of another rank; a problem with a setting keeps its type, because all ranks end as it says."""
    place = f"rank {rank} on {answer['host']}"
    if "problems" in answer:
        problems = [ConfigProblem(*problem) for problem in answer["problems"]]
        raise ConfigError([replace(problem, message=f"{problem.message} ({place})") for problem in problems])
    raise PeerError(f"{place} failed: {answer['text']}")


def _open_answer(answer: dict[str, Any]) -> Any:
    """Return the value of an answer, or raise the error that it describes."""
    if "problems" in answer:
        raise ConfigError([ConfigProblem(*problem) for problem in answer["problems"]])
    if "system_error" in answer:
        raise OSError(*answer["system_error"])
    if "error" in answer:
        raise RuntimeError(f"another rank failed: {answer['error']}")
    return answer["value"]
