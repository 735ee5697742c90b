"""Communication profiles: the arithmetic on constructed events, and real steps on gloo ranks."""

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
from trainer.config.models import MlpConfig
from trainer.config.schema import Config
from trainer.life.straggler import StragglerDetector
from trainer.life.vote import Ballot, Vote
from trainer.metrics.communication import Event, Profile, merge_intervals, name_collective, summarise
from trainer.metrics.meter import Meter
from trainer.metrics.profile import Profiler, _profile_host
from trainer.metrics.recorder import Recorder
from trainer.metrics.timeline_file import join_compute
from trainer.metrics.utilisation import read_memory_gb
from trainer.world import Member, World


def compute(start: int, end: int) -> Event:
    return Event("", start * 1_000_000, end * 1_000_000, "compute")


def message(start: int, end: int, name: str = "all_reduce", group: str = "world") -> Event:
    return Event(name, start * 1_000_000, end * 1_000_000, "communication", group, 1_000_000)


SPAN = (0, 100_000_000)


@pytest.mark.parametrize(
    ("events", "on_device", "on_host"),
    [
        # Communication is hidden while compute is running, and exposed after it.
        ([compute(0, 50), message(10, 30)], 0, 0),
        ([compute(0, 50), message(50, 80)], 30, 30),
        ([compute(0, 50), message(30, 80)], 30, 30),
        # Two messages at the same time count once.
        ([compute(0, 50), message(50, 80), message(60, 90)], 40, 40),
        # A host thread that continues before the message ends was not waiting for it, but an empty stream was idle.
        ([compute(0, 20), compute(40, 100), message(10, 90)], 20, 0),
        # The thread waited for the first message, then ran Python while the second was in flight.
        ([compute(0, 20), message(10, 30), message(10, 90), compute(40, 100)], 20, 10),
        # The end is recorded just after the thread woke; a gap much shorter than the rest of the message is not a wait.
        ([compute(0, 20), message(10, 61), compute(60, 100)], 40, 40),
        ([compute(0, 20), message(10, 70), compute(60, 100)], 40, 0),
        ([compute(0, 20), compute(21, 100), message(10, 23)], 1, 0),
    ],
)
def test_communication_not_covered_by_compute_is_exposed(events: list[Event], on_device: int, on_host: int):
    assert summarise(1, events, SPAN, host=False).exposed_ms == on_device
    assert summarise(1, events, SPAN, host=True).exposed_ms == on_host


def test_traffic_is_grouped_by_collective_and_group():
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


def test_a_timeline_has_every_message_and_few_pieces_of_compute():
    """Gaps of less than a two-thousandth of the step are filled, so that many short kernels become one piece."""
    kernels = [Event("", start, start + 10, "compute") for start in range(0, 1000, 15)]
    late = Event("", 3000, 3100, "compute")
    sent = [Event("all_reduce", 5, 400, "communication"), Event("all_reduce", 300, 3050, "communication")]
    joined = join_compute([*kernels, late, *sent], 20_000)
    assert joined == [Event("", 0, 1000, "compute"), *sent, late]


def test_a_step_without_communication_has_no_traffic():
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
def test_every_spelling_of_a_collective_has_the_same_name(name: str, plain: str):
    assert name_collective(name) == plain


def test_intervals_are_merged():
    assert merge_intervals([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]


def test_profiles_do_not_leak_memory():
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(30)])
    device = torch.device("cpu")
    profiler = Profiler(1, device, lambda _: None)
    before = 0.0
    gc.disable()
    try:
        for step in range(1, 26):
            with profiler.around(step):
                model(torch.ones(1, 16)).sum().backward()
            before = before if step != 5 else read_memory_gb(device)
    finally:
        gc.enable()
    assert read_memory_gb(device) - before < 0.01


@pytest.mark.parametrize(
    ("every", "first", "profiled"),
    [(0, 1, []), (4, 1, [4, 8, 12, 16, 20]), (200, 1, [10, 14]), (200, 195, [200, 204])],
)
def test_early_steps_of_a_process_are_profiled_too(every: int, first: int, profiled: list[int]):
    steps: list[int] = []
    profiler = Profiler(every, torch.device("cpu"), lambda profile: steps.append(profile.step))
    for step in range(first, first + 20):
        with profiler.around(step):
            torch.ones(1)
    assert steps == profiled


def test_a_profile_covers_only_its_step():
    profiles: list[Any] = []
    profiler = Profiler(3, torch.device("cpu"), profiles.append)
    for step in (1, 2, 3):
        with profiler.around(step):
            torch.mm(torch.ones(700, 700), torch.ones(700, 700)) if step < 3 else torch.ones(1)
    (profile,) = profiles
    assert 0 < profile.compute_ms <= profile.span_ms


def test_the_profiler_stops_if_its_step_is_skipped():
    """A run may return to an earlier step just before the profiled one; the profiler would collect forever."""
    profiles: list[Any] = []
    profiler = Profiler(20, torch.device("cpu"), profiles.append)
    for step in (19, 5, 6, 19, 20):
        with profiler.around(step):
            torch.ones(1)
        assert torch.autograd._profiler_enabled() is (step == 19)
    assert [profile.step for profile in profiles] == [20]


@pytest.mark.parametrize(
    ("shares", "profiled", "median_share"),
    [
        ([0.9, 0.9], [10, 14], 0.9),
        ([0.0, 0.9, 0.9], [10, 14, 18], 0.9),
        ([0.9, 0.0, 0.9], [10, 14, 18], 0.9),
        # Never the same twice: three profiles are enough.
        ([0.1, 0.5, 0.9], [10, 14, 18], 0.5),
    ],
)
def test_a_profile_that_differs_from_the_last_is_repeated(
    shares, profiled, median_share, monkeypatch: pytest.MonkeyPatch
):
    remaining = iter(shares)

    def fake_profile(step: int, *_: Any) -> Profile:
        return Profile(step, 100.0, 0.0, 0.0, 100.0 * next(remaining))

    monkeypatch.setattr("trainer.metrics.profile._profile_host", fake_profile)
    steps: list[int] = []
    profiler = Profiler(200, torch.device("cpu"), lambda profile: steps.append(profile.step))
    for step in range(1, 41):
        with profiler.around(step):
            pass
    assert steps == profiled
    assert profiler.exposed_share == pytest.approx(median_share)


def profiled_steps() -> dict[str, Any]:
    """Run on a rank: profile a step of DDP and one of FSDP2 over a named mesh dimension."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def layers() -> torch.nn.Sequential:
        return torch.nn.Sequential(*[torch.nn.Linear(128, 128, bias=False) for _ in range(3)])

    def profile_of(model: torch.nn.Module) -> dict[str, Any]:
        profiles: list[Any] = []
        # Profile the third step: in the second, DDP reorders its buckets, which is additional traffic.
        profiler = Profiler(3, torch.device("cpu"), profiles.append, ["a", "a", "b", "b"])
        for step in (1, 2, 3):
            with profiler.around(step):
                model(torch.ones(8, 128)).sum().backward()
        (profile,) = profiles
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
    assert (row["collective"], row["group"], row["link"]) == ("all_reduce", "world", "network")
    assert row["mb"] == pytest.approx(3 * 128 * 128 * 4 / 1e6)
    assert 0 < profile["exposed_ms"] <= profile["communication_ms"] <= profile["span_ms"]
    assert 0 < profile["compute_ms"] < profile["span_ms"]


def test_fsdp_on_gloo_is_separated_by_collective_and_mesh_dimension(profiles: dict[str, Any]):
    rows = {row["collective"]: row for row in profiles["fsdp"]["traffic"]}
    assert set(rows) == {"all_gather", "reduce_scatter"}
    assert {(row["group"], row["link"]) for row in rows.values()} == {("shard", "node")}
    assert rows["reduce_scatter"]["count"] == 3
    assert rows["reduce_scatter"]["mb"] == pytest.approx(3 * 128 * 128 * 4 / 1e6)
    # Forward and backward gather; the last layer may stay gathered in between.
    assert rows["all_gather"]["count"] in (5, 6)


SLOW = 1


def steps_with_a_slow_rank(delay_s: float) -> list[tuple[float, float]]:
    """Run on a rank: return (exposed, total) milliseconds of communication of steps in which one rank is late."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    profiles: list[Any] = []
    profiler = Profiler(1, torch.device("cpu"), profiles.append)
    for step in range(1, 9):
        with profiler.around(step):
            time.sleep(delay_s if torch.distributed.get_rank() == SLOW else 0)
            model(torch.ones(8, 64)).sum().backward()
    # The first profile is left out: starting the profiler takes longer then, and not equally long on all ranks.
    return [(profile.exposed_ms, profile.communication_ms) for profile in profiles[1:]]


@pytest.mark.nightly
def test_the_delay_of_a_slow_rank_is_exposed_on_the_other_ranks_only():
    # Half of the delay decides: on a busy machine, any rank may be late by a tenth of a second.
    ranks = on_ranks(f"{__name__}:steps_with_a_slow_rank", delay_s=0.5)
    slow = ranks.pop(SLOW)
    assert min(median(exposed for exposed, _ in steps) for steps in ranks) > 250
    # A wait counts even if its message is recorded after the thread woke; the median hides a very late record.
    shares = sorted(exposed / total for steps in ranks for exposed, total in steps)
    assert shares[len(shares) // 4] > 0.7
    # The minimum is checked, because on a busy machine this rank sometimes waits for ranks that wait for a core.
    assert min(exposed for exposed, _ in slow) < 250


def test_a_profile_without_its_messages_is_repeated():
    """gloo's thread may get no core between the end of its message and the end of the step."""
    calls = [
        ProfilerEvent("trainer::step", 0, 100),
        ProfilerEvent("aten::mm", 0, 10),
        ProfilerEvent("c10d::allreduce_", 20, 30),
    ]
    assert _profile_host(1, calls, [], {}) is None
    profile = _profile_host(1, [*calls, ProfilerEvent("gloo:all_reduce", 25, 95, thread=2)], [], {})
    assert profile is not None
    assert profile.exposed_share == pytest.approx(0.7)


@dataclasses.dataclass(frozen=True)
class ProfilerEvent:
    """An event with the interface of torch's profiler."""

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
    """Run on a rank: measure and vote like a run with default settings; return the reports as (step, slow rank)."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    cpu, host = torch.device("cpu"), socket.gethostname()
    members = tuple(Member(r, ranks, r, host, "", "cpu") for r in range(ranks))
    world = World(rank, ranks, rank, ranks, host, cpu, members, torch.distributed.group.WORLD)
    config = Config(name="slow", model=MlpConfig(), steps=steps)
    recorder = Recorder(folder, rank, config, stream=io.StringIO())
    meter, vote = Meter(recorder, config, cpu, ranks, flops_per_sample=0), Vote(world)
    stragglers = StragglerDetector([host] * ranks, config.watchdog.straggler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    reported = []
    for step in range(1, steps + 1):
        with meter.step(step):
            time.sleep(delay_s if rank == SLOW else 0)
            loss = model(torch.ones(8, 64)).sum()
            loss.backward()
        meter.done(step, {"loss": loss.detach()}, {})
        agreed = vote.exchange(Ballot(work_s=meter.own_s))
        reported += [(step, slow.rank) for slow in (stragglers.observe(agreed.work_s) if agreed else [])]
    vote.drain()
    recorder.close()
    return reported


@pytest.mark.fault(32)
def test_a_slow_rank_is_reported_soon_with_default_settings(tmp_path: Path):
    reported = on_ranks(f"{__name__}:steps_of_a_loop", folder=tmp_path, delay_s=0.15, steps=55)
    assert reported == [reported[0]] * RANKS
    assert [rank for _, rank in reported[0]] == [SLOW]
