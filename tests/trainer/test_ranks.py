"""The ranks of a test session: they serve many calls, and new ones start before their threads slow the machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from tests.trainer import ranks
from tests.trainer.forks import fork_context
from tests.trainer.launch import wait_until_gone
from tests.trainer.ranks import on_ranks

GET_PID = "tests.trainer.test_ranks:get_pid"


def get_pid(payload: bytes = b"") -> int:
    return os.getpid()


def test_ranks_serve_several_calls() -> None:
    """The second call finds stopped ranks, which take more than the buffer of a socket holds."""
    assert on_ranks(GET_PID, ranks=2) == on_ranks(GET_PID, ranks=2, timeout_s=60, payload=bytes(8 << 20))


def test_ranks_with_too_many_threads_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_MOST_THREADS", 0)
    old = on_ranks(GET_PID, ranks=2)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in old)
    assert set(on_ranks(GET_PID, ranks=2)).isdisjoint(old)


def test_a_rank_that_died_between_calls_is_named_and_replaced() -> None:
    os.kill(on_ranks(GET_PID, ranks=2)[1], signal.SIGKILL)
    with pytest.raises(ranks.RanksError, match=r"^rank 1: died with exit code -9"):
        on_ranks(GET_PID, ranks=2, failures=1)
    assert len(on_ranks(GET_PID, ranks=2)) == 2


def test_stopped_ranks_end_with_a_killed_session() -> None:
    ours, theirs = fork_context().Pipe()
    session = fork_context().Process(target=serve_until_killed, args=(theirs,))
    session.start()
    theirs.close()
    pids = ours.recv()
    session.join()
    assert session.exitcode == -signal.SIGKILL
    wait_until_gone(pids)


def serve_until_killed(end: Connection) -> None:
    # A fork server of its own would import torch again.
    pytest.MonkeyPatch().setattr(ranks, "fork_context", lambda: multiprocessing.get_context("fork"))
    end.send(on_ranks(GET_PID, ranks=1))
    os.kill(os.getpid(), signal.SIGKILL)
