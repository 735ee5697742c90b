"""Asynchronous collectives on gloo ranks: results, order, errors at `wait`, ranks that die."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.forks import fork_context
from tests.trainer.ranks import on_ranks
from trainer.collectives import background
from trainer.collectives.background import Handle, Queue
from trainer.collectives.exchange import TAG, ConnectionLost, run_schedule
from trainer.collectives.operations import all_gather, all_reduce, broadcast, reduce_scatter
from trainer.collectives.schedule import Schedule, Transfer

HERE = "tests.trainer.test_collectives_background"


def queued_collectives() -> None:
    """Queue many collectives of several kinds, with a synchronous one between them, and check every result."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = ranks * (ranks + 1) // 2
    handles: list[Handle | None] = []
    sums = [torch.full((size,), rank + 1.0) for size in (1, 1000, 700_001, 3)]
    for tensor, pattern in zip(sums, ("ring", "tree", "halving_doubling", "ring"), strict=True):
        handles.append(all_reduce(tensor, pattern=pattern, async_op=True))
    column = torch.full((50, 2), rank + 1.0)
    handles.append(all_reduce(column[:, 1], average=True, async_op=True))
    part = torch.empty(5)
    handles.append(reduce_scatter(part, torch.arange(5.0 * ranks), async_op=True))
    now = torch.full((3,), rank)
    assert all_reduce(now) is None
    assert now.tolist() == [total - ranks] * 3
    gathered = torch.empty(ranks, dtype=torch.int64)
    handles.append(all_gather(gathered, torch.tensor([rank]), async_op=True))
    root = torch.tensor([rank])
    handles.append(broadcast(root, root=1, async_op=True))
    # In any order, and more than once.
    for handle in [*reversed(handles), handles[0]]:
        assert handle is not None
        handle.wait()
        assert handle.is_completed()
    assert [bool((tensor == total).all()) for tensor in sums] == [True] * 4
    assert torch.equal(column, torch.tensor([rank + 1.0, total / ranks]).expand(50, 2))
    assert part.tolist() == [ranks * (5.0 * rank + number) for number in range(5)]
    assert gathered.tolist() == list(range(ranks))
    assert root.item() == 1


def overlapped_with_backward() -> None:
    """Sum each gradient as soon as it is ready, while backward continues, and compare with torch's sums."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    batch = torch.randn(32, 64)
    handles = []
    for parameter in model.parameters():

        def start(leaf: Any) -> None:
            handles.append(all_reduce(leaf.grad, pattern="tree", async_op=True))

        parameter.register_post_accumulate_grad_hook(start)
    model(batch).square().sum().backward()
    for handle in handles:
        assert handle is not None
        handle.wait()
    reduced = [parameter.grad.clone() for parameter in model.parameters()]
    assert len(handles) == len(reduced)

    again = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    again.load_state_dict(model.state_dict())
    again(batch).square().sum().backward()
    for parameter, ours in zip(again.parameters(), reduced, strict=True):
        dist.all_reduce(parameter.grad)
        torch.testing.assert_close(ours, parameter.grad)


def test_queued_collectives_return_what_synchronous_calls_return() -> None:
    on_ranks(f"{HERE}:queued_collectives", ranks=4)
    on_ranks(f"{HERE}:queued_collectives", ranks=2)


def test_collectives_overlap_with_backward() -> None:
    on_ranks(f"{HERE}:overlapped_with_backward", ranks=4)


def submit(queue: Queue, action: Callable[[], None]) -> Handle:
    handle = Handle(action, torch.device("cpu"))
    queue.submit(handle)
    return handle


def fail(error: Exception) -> None:
    raise error


def test_an_error_is_raised_by_each_wait_and_later_collectives_run() -> None:
    queue = Queue()
    ran: list[int] = []
    refused = submit(queue, partial(fail, ValueError("shapes differ")))
    submit(queue, partial(ran.append, 1)).wait()
    for _ in range(2):
        with pytest.raises(ValueError, match="shapes differ"):
            refused.wait()
    assert ran == [1]


def test_after_a_lost_connection_no_later_collective_of_the_group_runs() -> None:
    queue = Queue()
    ran: list[int] = []
    lost = submit(queue, partial(fail, ConnectionLost("no answer from rank 3")))
    later = submit(queue, partial(ran.append, 1))
    with pytest.raises(ConnectionLost, match=r"^no answer from rank 3$"):
        lost.wait()
    with pytest.raises(ConnectionLost, match=r"an earlier collective .* failed: no answer from rank 3"):
        later.wait()
    synchronous = Handle(partial(ran.append, 2), torch.device("cpu"))
    queue.run(synchronous)
    with pytest.raises(ConnectionLost, match="an earlier collective"):
        synchronous.wait()
    assert ran == []


def test_a_collective_waits_for_a_synchronous_one_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of a group have the same tag, so two collectives at the same time would receive each other's."""
    monkeypatch.setattr(background, "IDLE_S", 0.01)
    queue = Queue()
    log: list[str] = []
    started, may_end = threading.Event(), threading.Event()

    def run_slowly() -> None:
        log.append("first starts")
        started.set()
        may_end.wait(240)
        log.append("first ends")

    first = Handle(run_slowly, torch.device("cpu"))
    caller = threading.Thread(target=queue.run, args=(first,))
    caller.start()
    assert started.wait(240)
    second = submit(queue, partial(log.append, "second"))
    third = Handle(partial(log.append, "third"), torch.device("cpu"))
    queue.run(third)
    # Longer than an idle thread lives.
    time.sleep(0.1)
    assert log == ["first starts"]
    assert not second.is_completed()
    may_end.set()
    third.wait()
    caller.join(240)
    assert log == ["first starts", "first ends", "second", "third"]


def test_a_connection_lost_by_a_synchronous_collective_stops_those_that_wait_for_it() -> None:
    queue = Queue()
    waiting: list[Handle] = []

    def lose() -> None:
        waiting.append(submit(queue, partial(fail, AssertionError("ran after a lost connection"))))
        raise ConnectionLost("no answer from rank 3")

    queue.run(Handle(lose, torch.device("cpu")))
    with pytest.raises(ConnectionLost, match=r"an earlier collective .* failed: no answer from rank 3"):
        waiting[0].wait()


def test_every_group_has_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one stream, kernels of two groups that ranks start in different orders would wait for each other forever."""
    monkeypatch.setattr(background.cuda, "Stream", lambda _: object())
    device = torch.device("cuda", 0)
    ours, other = Queue(), Queue()
    assert ours._stream_on(device) is ours._stream_on(device)
    assert ours._stream_on(device) is not other._stream_on(device)
    assert ours._stream_on(torch.device("cpu")) is None


def test_an_idle_thread_ends_and_the_next_collective_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "IDLE_S", 0.01)
    queue = Queue()
    ran: list[int] = []
    for number in range(3):
        submit(queue, partial(ran.append, number)).wait()
        thread = queue._thread
        if thread is not None:
            thread.join(timeout=240)
        assert queue._thread is None
    assert ran == [0, 1, 2]


TIMEOUT_S = 5.0


def _meet_a_dead_rank(rank: int, folder: Path, *, hangs: bool) -> None:
    """Lose rank 2 of 4 in the second collective, and write down what this rank raised and when."""
    torch.set_num_threads(1)
    # Ranks of a busy machine may start far apart. After a collective with a long timeout they do not.
    for timeout_s in (240.0, TIMEOUT_S):
        store, timeout = dist.FileStore(str(folder / f"store-{timeout_s:g}"), 4), timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=timeout)
        all_reduce(torch.ones(10))
        if timeout_s > TIMEOUT_S:
            dist.barrier()
            dist.destroy_process_group()
    if rank == 2:
        time.sleep(600 if hangs else 0)
        os._exit(1)
    start = time.monotonic()
    handle = all_reduce(torch.ones(100_000), async_op=True)
    try:
        assert handle is not None
        handle.wait()
    except ConnectionLost as error:
        (folder / f"rank-{rank}").write_text(f"{time.monotonic() - start:.1f}\n{error}")
    # Exits at once, as a rank does whose training loop raised: its neighbours must not need it.
    os._exit(0)


@pytest.mark.nightly_cases("True")
@pytest.mark.parametrize("hangs", [False, True])
def test_a_rank_that_dies_or_hangs_is_named_by_its_neighbours(tmp_path: Path, hangs: bool) -> None:
    context = fork_context()
    ranks = [
        context.Process(target=_meet_a_dead_rank, args=(rank, tmp_path), kwargs={"hangs": hangs}) for rank in range(4)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        if not hangs or process is not ranks[2]:
            process.join(timeout=240)
    ranks[2].kill()
    reports = {rank: (tmp_path / f"rank-{rank}").read_text().split("\n", 1) for rank in (0, 1, 3)}
    assert all(float(seconds) < 60 for seconds, _ in reports.values()), reports
    assert "rank 3 got no answer from rank 2 in a collective: " in reports[3][1]
    assert all(f"rank {rank} got no answer from rank" in text for rank, (_, text) in reports.items())


def _receive_late(rank: int, folder: Path) -> None:
    """Lose rank 2 on rank 0, and send it what it still expects from rank 1 while it receives from another group."""
    torch.set_num_threads(1)
    store, timeout = dist.FileStore(str(folder / "store"), 4), timedelta(seconds=240)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4, timeout=timeout)
    group = dist.new_group([0, 1, 3])
    # Ranks connect, and rank 2 is not needed any more when it ends.
    all_reduce(torch.zeros(10))
    dist.barrier()
    if rank == 2:
        _wait_for_file(folder / "connected")
        os._exit(1)
    sent = torch.ones(1000)
    if rank == 0:
        _add_after_a_lost_connection(group, folder)
    else:
        all_reduce(torch.zeros(10), group)
    if rank == 1:
        _wait_for_file(folder / "lost")
        group.send([sent], 0, TAG).wait()
        dist.group.WORLD.send([torch.full((2000,), 100.0)], 0, TAG).wait()
        (folder / "late").touch()
    if rank == 3:
        _wait_for_file(folder / "late")
        # The message is still on its way to rank 0.
        time.sleep(0.5)
        group.send([sent], 0, TAG).wait()
    _wait_for_file(folder / "sum")
    os._exit(0)


def _add_after_a_lost_connection(group: Any, folder: Path) -> None:
    all_reduce(torch.zeros(10), group)
    (folder / "connected").touch()
    with pytest.raises(RuntimeError):
        dist.group.WORLD.recv([torch.zeros(1)], 2, TAG).wait()
    steps = ((Transfer("add", 1, 0, 1),), (Transfer("add", 2, 1, 2),))
    try:
        run_schedule(torch.zeros(4000), Schedule(2, steps, chunk_interval=2), [[(0, 2000), (2000, 4000)]], None)
    except ConnectionLost as error:
        # As a handle does. What has not arrived is expected as long as the error lives.
        lost = error
    (folder / "lost").touch()
    total = torch.zeros(2000)
    # Rank 2 of the group is rank 3.
    step = (Transfer("add", 1, 0, 1), Transfer("add", 2, 1, 2))
    run_schedule(total, Schedule(2, (step,), chunk_interval=1), [[(0, 1000), (1000, 2000)]], group)
    (folder / "sum.new").write_text(f"{total.unique().tolist()} {lost}")
    (folder / "sum.new").rename(folder / "sum")


def _wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_a_message_of_a_broken_group_does_not_reach_the_sums_of_another(tmp_path: Path) -> None:
    context = fork_context()
    ranks = [context.Process(target=_receive_late, args=(rank, tmp_path), daemon=True) for rank in range(4)]
    for process in ranks:
        process.start()
    ranks[0].join(timeout=240)
    for process in ranks:
        process.kill()
    total, error = (tmp_path / "sum").read_text().split(" ", 1)
    assert "rank 0 got no answer from rank 2" in error
    assert total == "[1.0]"
