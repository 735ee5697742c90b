"""The flight recorder of real gloo ranks: which collectives are still running."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.metrics.flight_recorder import read_flight_recorders, wait_for_gloo

# For ranks of a busy machine; a wait ends as soon as the other rank has come this far.
MEET_S = 240.0
# Shows that a wait lasts, but decides nothing.
LATE_S = 0.5


def tell(event: str) -> None:
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(event, "")


def wait_for(event: str) -> None:
    store: Any = dist.distributed_c10d._get_default_store()
    store.wait([event], timedelta(seconds=MEET_S))


def wait_for_a_late_rank() -> tuple[float, list[bool]]:
    """Begin collectives that rank 1 joins later; return when rank 1 joined or rank 0 had waited, and what has ended."""
    dist.barrier()
    began_ns = time.time_ns()
    if dist.get_rank() == 1:
        wait_for("rank 0 waits")
        time.sleep(LATE_S)
        joined_at = time.monotonic()
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(4)]
    if dist.get_rank() == 0:
        tell("rank 0 waits")
    wait_for_gloo(began_ns)
    waited_at = time.monotonic()
    retired = [entry["retired"] for entry in read_flight_recorders() if entry["time_created_ns"] >= began_ns]
    assert all(work is not None and work.is_completed() for work in works)
    return joined_at if dist.get_rank() == 1 else waited_at, retired


def test_all_collectives_since_a_time_are_waited_for() -> None:
    (waited_at, early), (joined_at, late) = on_ranks(f"{__name__}:wait_for_a_late_rank", ranks=2)
    assert early == late == [True] * 4
    assert waited_at > joined_at


def ignore_what_never_ends() -> float:
    """Return the time waited beside an older collective and a message that are still running on rank 0."""
    old = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    time.sleep(0.01)
    began_ns = time.time_ns()
    message = dist.irecv(torch.ones(3), 1) if dist.get_rank() == 0 else None
    started = time.monotonic()
    wait_for_gloo(began_ns, limit_s=MEET_S)
    waited_s = time.monotonic() - started
    join_after_rank_0("beside others")
    if dist.get_rank() == 1:
        dist.send(torch.ones(3), 0)
    for work in (old, message):
        assert work is None or work.wait()
    return waited_s


def test_older_collectives_and_messages_are_not_waited_for() -> None:
    assert max(on_ranks(f"{__name__}:ignore_what_never_ends", ranks=2)) < MEET_S


def wait_at_most() -> float:
    began_ns = time.time_ns()
    work = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    started = time.monotonic()
    wait_for_gloo(began_ns, limit_s=0.1)
    waited_s = time.monotonic() - started
    join_after_rank_0("for a while")
    assert work is None or work.wait()
    return waited_s


def join_after_rank_0(what: str) -> None:
    """Let rank 1 join the collective of rank 0 when that has waited."""
    if dist.get_rank() == 0:
        tell(f"rank 0 has waited {what}")
    else:
        wait_for(f"rank 0 has waited {what}")
        dist.all_reduce(torch.ones(3))


def test_the_wait_has_a_limit() -> None:
    waited_s = on_ranks(f"{__name__}:wait_at_most", ranks=2)[0]
    assert 0.1 <= waited_s < MEET_S


def test_a_process_without_groups_does_not_wait() -> None:
    assert read_flight_recorders() == []
    wait_for_gloo(0)
