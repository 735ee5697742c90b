"""The flight recorder of real gloo ranks: which collectives are still running."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.metrics.flight_recorder import read_flight_recorders, wait_for_gloo

# Far more than a busy machine delays a rank.
LATE_S = 2.0


def wait_for_a_late_rank() -> tuple[float, list[bool]]:
    """Begin collectives that rank 1 joins later, and return the time waited and whether gloo was done with each."""
    dist.barrier()
    began_ns = time.time_ns()
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(4)]
    started = time.monotonic()
    wait_for_gloo(began_ns)
    waited_s = time.monotonic() - started
    retired = [entry["retired"] for entry in read_flight_recorders() if entry["time_created_ns"] >= began_ns]
    assert all(work is not None and work.is_completed() for work in works)
    return waited_s, retired


def test_all_collectives_since_a_time_are_waited_for() -> None:
    (early_s, early), (_, late) = on_ranks(f"{__name__}:wait_for_a_late_rank", ranks=2)
    assert early == late == [True] * 4
    assert early_s > LATE_S / 2


def ignore_what_never_ends() -> float:
    """Return the time waited beside an older collective and a message that are still running on rank 0."""
    old = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    time.sleep(0.01)
    began_ns = time.time_ns()
    message = dist.irecv(torch.ones(3), 1) if dist.get_rank() == 0 else None
    started = time.monotonic()
    wait_for_gloo(began_ns)
    waited_s = time.monotonic() - started
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
        dist.all_reduce(torch.ones(3))
        dist.send(torch.ones(3), 0)
    for work in (old, message):
        assert work is None or work.wait()
    return waited_s


def test_older_collectives_and_messages_are_not_waited_for() -> None:
    assert max(on_ranks(f"{__name__}:ignore_what_never_ends", ranks=2)) < LATE_S


def wait_at_most() -> float:
    began_ns = time.time_ns()
    work = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    started = time.monotonic()
    wait_for_gloo(began_ns, limit_s=0.1)
    waited_s = time.monotonic() - started
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
        dist.all_reduce(torch.ones(3))
    assert work is None or work.wait()
    return waited_s


def test_the_wait_has_a_limit() -> None:
    waited_s = on_ranks(f"{__name__}:wait_at_most", ranks=2)[0]
    assert 0.1 <= waited_s < LATE_S


def test_a_process_without_groups_does_not_wait() -> None:
    assert read_flight_recorders() == []
    wait_for_gloo(0)
