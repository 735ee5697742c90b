"""Communication out of a profile: the arithmetic on made-up events, and real steps on gloo ranks."""

from __future__ import annotations

import dataclasses
import gc
import io
import socket
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RANKS, on_ranks
from trainer.config.schema import Config, MlpConfig
from trainer.life.straggler import StragglerDetector
from trainer.life.vote import Ballot, Vote
from trainer.metrics.communication import Event, Profile, collective, merge, summarise
from trainer.metrics.meter import Meter
from trainer.metrics.profile import Profiler, _host_profile
from trainer.metrics.recorder import Recorder
from trainer.metrics.utilisation import memory_gb
from trainer.world import Member, World


def compute(start: int, end: int) -> Event:
    return Event("", start * 1_000_000, end * 1_000_000, "compute")


def message(start: int, end: int, name: str = "all_reduce", group: str = "world") -> Event:
    return Event(name, start * 1_000_000, end * 1_000_000, "communication", group, 1_000_000)


SPAN = (0, 100_000_000)


@pytest.mark.parametrize(
    ("events", "on_device", "on_host"),
    [
        # Inside compute: free. After it: all of it is seen.
        ([compute(0, 50), message(10, 30)], 0, 0),
        ([compute(0, 50), message(50, 80)], 30, 30),
        ([compute(0, 50), message(30, 80)], 30, 30),
        # Two at once count once.
        ([compute(0, 50), message(50, 80), message(60, 90)], 40, 40),
        # A host thread that goes on before the message is done was not waiting for it; a stream that is empty is idle.
        ([compute(0, 20), compute(40, 100), message(10, 90)], 20, 0),
        # It waited for the first, then ran Python while the second was under way.
        ([compute(0, 20), message(10, 30), message(10, 90), compute(40, 100)], 20, 10),
        # The end is stamped a little after the waiter woke; a gap much shorter than what is left is no wait.
        ([compute(0, 20), message(10, 61), compute(60, 100)], 40, 40),
        ([compute(0, 20), message(10, 70), compute(60, 100)], 40, 0),
        ([compute(0, 20), compute(21, 100), message(10, 23)], 1, 0),
    ],
)
def test_exposed_is_what_compute_does_not_cover(events: list[Event], on_device: int, on_host: int):
    assert summarise(1, events, SPAN, host=False).exposed_ms == on_device
    assert summarise(1, events, SPAN, host=True).exposed_ms == on_host


def test_traffic_is_by_collective_and_group():
    events = [
        compute(0, 40),
        message(10, 30),
        message(30, 60),
        message(60, 65, "all_gather", "shard"),
        message(65, 70, "all_reduce", "replicate"),
    ]
    profile = summarise(3, events, SPAN, host=False)
    rows = [(r.collective, r.group, r.count, r.mb, r.ms, r.exposed_ms) for r in profile.traffic]
    assert rows == [
        ("all_reduce", "world", 2, 2.0, 50.0, 20.0),
        ("all_gather", "shard", 1, 1.0, 5.0, 5.0),
        ("all_reduce", "replicate", 1, 1.0, 5.0, 5.0),
    ]
    assert (profile.span_ms, profile.compute_ms, profile.communication_ms, profile.exposed_ms) == (100, 40, 60, 30)
    assert profile.exposed_share == 0.3


def test_a_step_without_communication_has_none():
    profile = summarise(1, [compute(0, 50)], SPAN, host=False)
    assert (profile.communication_ms, profile.exposed_share, profile.traffic) == (0, 0, [])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclSymkDevKernel_AllGather_ST", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:send 0->1", "send"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
    ],
)
def test_one_name_for_each_collective(name: str, plain: str):
    assert collective(name) == plain


def test_merge():
    assert merge([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]


def test_a_profile_leaves_nothing_behind():
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(30)])
    device = torch.device("cpu")
    profiler = Profiler(1, device, lambda _: None)
    before = 0.0
    gc.disable()
    try:
        for step in range(1, 26):
            with profiler.around(step):
                model(torch.ones(1, 16)).sum().backward()
            before = before if step != 5 else memory_gb(device)
    finally:
        gc.enable()
    assert memory_gb(device) - before < 0.01


@pytest.mark.parametrize(
    ("every", "first", "profiled"),
    [(0, 1, []), (4, 1, [4, 8, 12, 16, 20]), (200, 1, [10, 14]), (200, 195, [200, 204])],
)
def test_early_steps_of_this_process_are_profiled_too(every: int, first: int, profiled: list[int]):
    found: list[int] = []
    profiler = Profiler(every, torch.device("cpu"), lambda profile: found.append(profile.step))
    for step in range(first, first + 20):
        with profiler.around(step):
            torch.ones(1)
    assert found == profiled


def test_a_profile_is_of_its_step_only():
    found: list[Any] = []
    profiler = Profiler(3, torch.device("cpu"), found.append)
    for step in (1, 2, 3):
        with profiler.around(step):
            torch.mm(torch.ones(700, 700), torch.ones(700, 700)) if step < 3 else torch.ones(1)
    (profile,) = found
    assert 0 < profile.compute_ms <= profile.span_ms


def test_a_step_that_never_comes_is_not_waited_for():
    """A run that returns to an earlier step right before the profiled one; the profiler would collect for ever."""
    found: list[Any] = []
    profiler = Profiler(20, torch.device("cpu"), found.append)
    for step in (19, 5, 6, 19, 20):
        with profiler.around(step):
            torch.ones(1)
        assert torch.autograd._profiler_enabled() is (step == 19)
    assert [profile.step for profile in found] == [20]


@pytest.mark.parametrize(
    ("shares", "profiled", "together"),
    [
        ([0.9, 0.9], [10, 14], 0.9),
        ([0.0, 0.9, 0.9], [10, 14, 18], 0.9),
        ([0.9, 0.0, 0.9], [10, 14, 18], 0.9),
        # Never the same twice: three are enough.
        ([0.1, 0.5, 0.9], [10, 14, 18], 0.5),
    ],
)
def test_a_profile_that_says_something_new_is_checked(shares, profiled, together, monkeypatch: pytest.MonkeyPatch):
    coming = iter(shares)

    def made_up(step: int, *_: Any) -> Profile:
        return Profile(step, 100.0, 0.0, 0.0, 100.0 * next(coming))

    monkeypatch.setattr("trainer.metrics.profile._host_profile", made_up)
    found: list[int] = []
    profiler = Profiler(200, torch.device("cpu"), lambda profile: found.append(profile.step))
    for step in range(1, 41):
        with profiler.around(step):
            pass
    assert found == profiled
    assert profiler.exposed_share == pytest.approx(together)


def profiled_steps() -> dict[str, Any]:
    """On a rank: a profiled step of DDP and one of FSDP2 over a named mesh dimension."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    def layers() -> torch.nn.Sequential:
        return torch.nn.Sequential(*[torch.nn.Linear(128, 128, bias=False) for _ in range(3)])

    def profile_of(model: torch.nn.Module) -> dict[str, Any]:
        found: list[Any] = []
        # The third: in the second DDP puts its buckets in order, which is traffic of its own.
        profiler = Profiler(3, torch.device("cpu"), found.append)
        for step in (1, 2, 3):
            with profiler.around(step):
                model(torch.ones(8, 128)).sum().backward()
        (profile,) = found
        return dataclasses.asdict(profile)

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    sharded = layers()
    for layer in sharded:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(sharded, mesh=mesh["shard"])
    ddp = torch.nn.parallel.DistributedDataParallel(layers())
    return {"ddp": profile_of(ddp), "fsdp": profile_of(sharded)}


@pytest.fixture(scope="module")
def profiles() -> dict[str, Any]:
    return on_ranks(f"{__name__}:profiled_steps")[0]


def test_ddp_on_gloo_reduces_every_gradient_once(profiles: dict[str, Any]):
    profile = profiles["ddp"]
    (row,) = profile["traffic"]
    assert profile["step"] == 3
    assert (row["collective"], row["group"]) == ("all_reduce", "world")
    assert row["mb"] == pytest.approx(3 * 128 * 128 * 4 / 1e6)
    assert 0 < profile["exposed_ms"] <= profile["communication_ms"] <= profile["span_ms"]
    assert 0 < profile["compute_ms"] < profile["span_ms"]


def test_fsdp_on_gloo_is_told_apart_by_collective_and_mesh_dimension(profiles: dict[str, Any]):
    rows = {row["collective"]: row for row in profiles["fsdp"]["traffic"]}
    assert set(rows) == {"all_gather", "reduce_scatter"}
    assert {row["group"] for row in rows.values()} == {"shard"}
    assert rows["reduce_scatter"]["count"] == 3
    assert rows["reduce_scatter"]["mb"] == pytest.approx(3 * 128 * 128 * 4 / 1e6)
    # Forward and backward gather; the last layer may stay gathered in between.
    assert rows["all_gather"]["count"] in (5, 6)


SLOW = 1


def steps_with_a_slow_rank(delay_s: float) -> list[tuple[float, float]]:
    """On a rank: (exposed, all) milliseconds of communication in steps in which one rank comes late."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    found: list[Any] = []
    profiler = Profiler(1, torch.device("cpu"), found.append)
    for step in range(1, 9):
        with profiler.around(step):
            time.sleep(delay_s if torch.distributed.get_rank() == SLOW else 0)
            model(torch.ones(8, 64)).sum().backward()
    # Not the first: to start a profiler takes longer then, and not equally long on all ranks.
    return [(profile.exposed_ms, profile.communication_ms) for profile in found[1:]]


def test_the_others_see_the_delay_of_a_slow_rank_and_it_sees_none():
    ranks = on_ranks(f"{__name__}:steps_with_a_slow_rank", delay_s=0.2)
    slow = ranks.pop(SLOW)
    assert min(median(exposed for exposed, _ in steps) for steps in ranks) > 100
    # A wait is not lost because its message is stamped after the waiter woke; a very late stamp is for the median.
    shares = sorted(exposed / everything for steps in ranks for exposed, everything in steps)
    assert shares[len(shares) // 4] > 0.7
    # The smallest: on a busy machine also this rank waits now and then, for others that wait for a core.
    assert min(exposed for exposed, _ in slow) < 100


def test_a_profile_that_lost_its_messages_is_made_again():
    """gloo's thread had no core between the end of its message and the end of the step."""
    calls = [Recorded("trainer::step", 0, 100), Recorded("aten::mm", 0, 10), Recorded("c10d::allreduce_", 20, 30)]
    assert _host_profile(1, calls, []) is None
    found = _host_profile(1, [*calls, Recorded("gloo:all_reduce", 25, 95, thread=2)], [])
    assert found is not None
    assert found.exposed_share == pytest.approx(0.7)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """An event as torch's profiler hands it out."""

    title: str
    start: int
    end: int
    thread: int = 1

    def name(self) -> str:
        return self.title

    def start_ns(self) -> int:
        return self.start * 1_000_000

    def duration_ns(self) -> int:
        return (self.end - self.start) * 1_000_000

    def start_thread_id(self) -> int:
        return self.thread

    def shapes(self) -> list[list[int]]:
        return [[4]]


def steps_of_a_loop(folder: Path, delay_s: float, steps: int) -> list[tuple[int, int]]:
    """On a rank: steps measured and voted on as in a run with default settings; (step, slow rank) as they are named."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    cpu, host = torch.device("cpu"), socket.gethostname()
    members = tuple(Member(r, ranks, r, host, "", "cpu") for r in range(ranks))
    world = World(rank, ranks, rank, ranks, host, cpu, members, torch.distributed.group.WORLD)
    config = Config(name="slow", model=MlpConfig(), steps=steps)
    recorder = Recorder(folder, rank, config, stream=io.StringIO())
    meter, vote = Meter(recorder, config, cpu, ranks, flops_per_sample=0), Vote(world)
    stragglers = StragglerDetector([host] * ranks, config.watchdog.straggler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    named = []
    for step in range(1, steps + 1):
        with meter.step(step):
            time.sleep(delay_s if rank == SLOW else 0)
            loss = model(torch.ones(8, 64)).sum()
            loss.backward()
        meter.done(step, {"loss": loss.detach()}, {})
        agreed = vote.exchange(Ballot(work_s=meter.own_s))
        named += [(step, slow.rank) for slow in (stragglers.observe(agreed.work_s) if agreed else [])]
    vote.drain()
    recorder.close()
    return named


def test_a_slow_rank_is_named_soon_at_default_settings(tmp_path: Path):
    named = on_ranks(f"{__name__}:steps_of_a_loop", folder=tmp_path, delay_s=0.15, steps=55)
    assert named == [named[0]] * RANKS
    assert [rank for _, rank in named[0]] == [SLOW]
