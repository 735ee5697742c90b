"""Gloo ranks that live as long as the test session and run any function on all of them."""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import importlib
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from tests.trainer.forks import fork_context

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

RANKS = 4
# Of ranks that answer after another one has failed: most do, and on a busy machine it may take them a while.
_GRACE_S = 60.0
# Each process group has a thread of gloo that wakes up a hundred times a second until its process ends, and torch
# keeps the groups of every mesh. So ranks are stopped between calls, and those that served many are replaced.
_MOST_THREADS = 40


def on_ranks(
    target: str, *, ranks: int = RANKS, timeout_s: float = 300, failures: int | None = None, **kwargs: Any
) -> list[Any]:
    """Run "module:function" with these arguments on each rank of a world and return the results by rank.

    Arguments and results are pickled. A rank that raises fails the test with its traceback, and so does one that is
    not done in time, or a minute after another one has failed; the next call then starts new ranks. A test that
    expects only some `failures` does not wait for the other ranks.
    """
    pool = _POOLS.get(ranks) or _Pool(ranks)
    _POOLS[ranks] = pool
    try:
        results = pool.run(target, timeout_s, failures or ranks, kwargs)
    except RanksError:
        _POOLS.pop(ranks).close()
        raise
    if pool.threads > _MOST_THREADS:
        _POOLS.pop(ranks).close()
    return results


class RanksError(AssertionError):
    """The tracebacks of the ranks that failed."""


class _Pool:
    """Ranks that join only once, because torch's cache of mesh groups outlives a world."""

    def __init__(self, ranks: int) -> None:
        context = fork_context()
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        # A store in a file is read every 10 ms, and ranks wait for it several times whenever they form a group.
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, ranks, self._store.port, self._stacks(rank), theirs)
            # A daemon ends with the session, and a rank is killed with one that is killed.
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)
        atexit.register(self.close)

    @property
    def threads(self) -> int:
        """The threads of the rank that has most."""
        return max(len(os.listdir(f"/proc/{process.pid}/task")) for process in self._processes)

    def run(self, target: str, timeout_s: float, failures: int, kwargs: dict[str, Any]) -> list[Any]:
        # First: a stopped rank reads nothing, and large arguments do not fit into its socket.
        self._signal(signal.SIGCONT)
        for end in self._ends:
            # A rank that has died since the last call has no answer, which says so.
            with suppress(OSError):
                end.send((target, kwargs))
        answers = self._answers(time.monotonic() + timeout_s, failures)
        failed = {rank: text for rank, (is_good, text) in sorted(answers.items()) if not is_good}
        if failed:
            raise RanksError("\n".join(f"rank {rank}: {text}" for rank, text in failed.items()))
        self._signal(signal.SIGSTOP)
        return [answers[rank][1] for rank in range(len(self._ends))]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def close(self) -> None:
        atexit.unregister(self.close)
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def _answers(self, deadline: float, failures: int) -> dict[int, tuple[bool, Any]]:
        """Return the answers of all ranks; once a rank has failed, the others, which may wait for it, get less time."""
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < len(self._ends):
            missing = {end: rank for rank, end in enumerate(self._ends) if rank not in answers}
            ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                return answers | dict.fromkeys(missing.values(), (False, "did not answer in time"))
            for end in ready:
                answers[missing[end]] = self._answer(missing[end])
            failed = [rank for rank, (is_good, _) in answers.items() if not is_good]
            if len(failed) >= failures:
                break
            if failed:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        return answers

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            return self._ends[rank].recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join()
            return False, f"died with exit code {self._processes[rank].exitcode}\n{self._stacks(rank).read_text()}"

    def _stacks(self, rank: int) -> Path:
        """Return the file to which a rank writes its stacks if it crashes."""
        return Path(self._folder.name, f"stacks-{rank}")


_POOLS: dict[int, _Pool] = {}


def _serve(rank: int, ranks: int, port: int, stacks: Path, end: Connection) -> None:
    _die_with_session()
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    with stacks.open("w") as file:
        faulthandler.enable(file)
        _answer_calls(end)


def _die_with_session() -> None:
    """Let the kernel kill this process when the one that started it ends: a stopped process sees no pipe close.

    The signal for the death of a parent would not do: the parent is the fork server, which lives as long as its forks.
    The pipe is the one whose other end only the starting process has; all of its data has been read.
    """
    session = multiprocessing.parent_process()
    assert session is not None
    pipe = session.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _answer_calls(end: Connection) -> None:
    while True:
        try:
            target, kwargs = end.recv()
        except EOFError:
            return
        try:
            module, function = target.split(":")
            answer = (True, getattr(importlib.import_module(module), function)(**kwargs))
        except BaseException:
            answer = (False, traceback.format_exc())
        end.send(answer)
