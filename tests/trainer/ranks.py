"""Four gloo ranks that live as long as the test session and run any function on all of them."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

RANKS = 4

# Loaded once and forked: every rank would take seconds to import them for itself.
_PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining"]


def on_ranks(target: str, *, ranks: int = RANKS, timeout_s: float = 120, **kwargs: Any) -> list[Any]:
    """Run "module:function" with these arguments on each rank of a fresh world; what it returned, by rank.

    Arguments and results are pickled. A rank that raises fails the test with its traceback, and so does one that is
    not done in time; the next call then starts new ranks.
    """
    pool = _pool()
    try:
        return pool.run(target, ranks, timeout_s, kwargs)
    except RanksError:
        pool.close()
        _pool.cache_clear()
        raise


class RanksError(AssertionError):
    """The tracebacks of the ranks that failed."""


@cache
def _pool() -> _Pool:
    pool = _Pool()
    atexit.register(pool.close)
    return pool


class _Pool:
    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._calls = 0
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            # A daemon dies with the session; one left behind by a killed session sees its pipe close.
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def run(self, target: str, ranks: int, timeout_s: float, kwargs: dict[str, Any]) -> list[Any]:
        self._calls += 1
        store = os.path.join(self._folder.name, f"store-{self._calls}")
        for end in self._ends[:ranks]:
            end.send((target, ranks, store, timeout_s, kwargs))
        answers = [self._answer(rank, timeout_s) for rank in range(ranks)]
        failed = {rank: text for rank, (is_good, text) in enumerate(answers) if not is_good}
        if failed:
            raise RanksError("\n".join(f"rank {rank}: {text}" for rank, text in failed.items()))
        return [value for _, value in answers]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def _answer(self, rank: int, timeout_s: float) -> tuple[bool, Any]:
        end = self._ends[rank]
        try:
            return end.recv() if end.poll(timeout_s) else (False, f"no answer within {timeout_s:g} s")
        except EOFError:
            return False, f"died with exit code {self._processes[rank].exitcode}"


def _serve(rank: int, end: Connection) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    while True:
        try:
            target, ranks, store, timeout_s, kwargs = end.recv()
        except EOFError:
            return
        try:
            answer = (True, _run(rank, target, ranks, store, timeout_s, kwargs))
        except BaseException:  # noqa: BLE001 - whatever it was, the test shows it
            answer = (False, traceback.format_exc())
        end.send(answer)


def _run(rank: int, target: str, ranks: int, store: str, timeout_s: float, kwargs: dict[str, Any]) -> Any:
    import torch.distributed as dist  # noqa: PLC0415

    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timeout)
    try:
        module, function = target.split(":")
        return getattr(importlib.import_module(module), function)(**kwargs)
    finally:
        dist.destroy_process_group()
