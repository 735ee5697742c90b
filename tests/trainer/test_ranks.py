"""The ranks of a test session: they serve many calls, and new ones start before their threads slow the machine."""

from __future__ import annotations

import os

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import on_ranks

GET_PID = "tests.trainer.test_ranks:get_pid"


def get_pid() -> int:
    return os.getpid()


def test_ranks_serve_several_calls() -> None:
    assert on_ranks(GET_PID, ranks=2) == on_ranks(GET_PID, ranks=2)


def test_ranks_with_too_many_threads_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_MOST_THREADS", 0)
    old = on_ranks(GET_PID, ranks=2)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in old)
    assert set(on_ranks(GET_PID, ranks=2)).isdisjoint(old)
