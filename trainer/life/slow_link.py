"""Find the host behind a slow or lossy link: once steps take longer, hosts exchange messages in pairs and compare them.

A slow link delays every rank alike, because all of them wait for the same collective, so the time that each rank works
does not show whose link it is. The messages use the control group, which is TCP, also if training uses NCCL.

Messages of a host whose processes get too little of its cores are slow too: each host also measures how long a piece of
work waits for a core, and what that explains is not reported as a link.

A link that loses packets is seldom slow to all partners in every exchange: most messages are late by a millisecond, and
some by the fifth of a second that TCP waits. So the kernel's count of packets that were sent again shows it instead.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed

from trainer.life.resent_packets import SentPackets, read_sent_packets
from trainer.world import World

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
MESSAGE_BYTES = 512 * 1024
PROBE_LIMIT_S = 300.0
"""Time after which a measurement counts as a hang, far more than one takes on a very slow link."""
# The median of these: a single one may be late because another process had the core.
_EXCHANGES = 5
# A host needs one good partner to be above suspicion, so not all pairs are measured.
_MAX_ROUNDS = 7
_TAG = 7301
# A host is slow if its messages take this many times those of the others, and longer by a time that matters.
_FACTOR = 2.0
_MIN_DELAY_S = 0.002
_MIN_HOSTS_TO_COMPARE = 3
# A host loses packets if this share was sent again, and this many times that of the others. One lost packet of a
# measurement is less on a network, where packets are not joined to larger ones.
_MIN_RESENT_SHARE, _RESENT_FACTOR = 0.005, 4.0
# More than the 20 ms that a container with a fifth of a core may run at a time, so that it is interrupted.
_WORK_S = 0.025
# A message needs a core several times on both hosts, and waits for it each time.
_WAITS_PER_MESSAGE = 2.0


@dataclass(frozen=True)
class HostTimes:
    """What a host measured."""

    message_s: float
    """Seconds of a message to and from its best partner."""
    wait_s: float
    """Seconds that a short piece of work waited for a core."""
    resent_share: float = 0.0
    """Share of the packets between it and its best partner that were sent again."""


@dataclass(frozen=True)
class SlowLink:
    """Hosts behind a slow or lossy link: one, or both ends where there is no third host to compare with."""

    ranks: tuple[int, ...]
    """The first rank of each host."""
    hosts: tuple[str, ...]
    message_s: float
    usual_s: float
    """What a message takes between the other hosts, or, of two hosts, what it took at the start."""
    resent_share: float = 0.0
    """Share of packets that were sent again, if the link is reported because it loses them."""

    def __str__(self) -> str:
        names = " and ".join(f"rank {rank} on {host}" for rank, host in zip(self.ranks, self.hosts, strict=True))
        if self.resent_share:
            share = f"{self.resent_share:.1%} of the packets were lost and sent again"
            return f"between {names}: {share}" if len(self.hosts) > 1 else f"{names}: {share}, also to its best partner"
        times = f"{self.message_s * 1e3:.1f} ms, {self.message_s / self.usual_s:.1f} times"
        size = f"{MESSAGE_BYTES // 1024} KiB"
        if len(self.hosts) > 1:
            return f"between {names}: {size} take {times} the {self.usual_s * 1e3:.1f} ms of the start"
        return f"{names}: {size} to its best partner take {times} the median of {self.usual_s * 1e3:.1f} ms"


class LinkWatch:
    """A detector of slow links; every rank observes the same times, so that all measure at the same step.

    Links are measured in several windows of steps at the start, and again when steps have become longer by a factor for
    as many windows. What is slow in most of these measurements is reported.
    """

    def __init__(self, hosts: Sequence[str], factor: float, window: int = 10, windows: int = 3) -> None:
        """`hosts` are those of all ranks."""
        first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
        self.leaders = sorted(first.values())
        """The first rank of each host."""
        self._hosts = [hosts[rank] for rank in self.leaders]
        self._factor = factor
        self._window, self._windows = window, windows
        self._steps: list[float] = []
        self._is_warm = False
        self._usual_step_s = 0.0
        self._slow_windows = 0
        self._due = windows
        self._measured: list[Sequence[HostTimes]] = []
        self._reference: list[HostTimes] = []

    def observe(self, step_s: float) -> bool:
        """Add the time of a step, 0 if none was measured; return whether to measure the links now."""
        if len(self._hosts) < 2 or not step_s:  # noqa: PLR2004  # A single host has no link.
            return False
        self._steps.append(step_s)
        if len(self._steps) < self._window:
            return False
        pace_s, self._steps = median(self._steps), []
        if not self._is_warm:
            # The first steps wait for compilers and caches.
            self._is_warm = True
            return False
        self._usual_step_s = min(self._usual_step_s or pace_s, pace_s)
        self._slow_windows = self._slow_windows + 1 if pace_s > self._factor * self._usual_step_s else 0
        if self._slow_windows == self._windows:
            self._due, self._measured = self._windows, []
        return self._due > 0

    def judge(self, measured: Sequence[HostTimes], stragglers: Collection[str] = ()) -> list[SlowLink]:
        """Add a measurement of each host; return the slow links once there are enough of them.

        `stragglers` are the hosts of ranks that are reported to be slow themselves; what is slow there is no link.
        """
        self._measured.append(measured)
        self._due -= 1
        if self._due:
            return []
        typical = [
            HostTimes(
                median(each.message_s for each in times),
                median(each.wait_s for each in times),
                median(each.resent_share for each in times),
            )
            for times in zip(*self._measured, strict=True)
        ]
        self._measured = []
        lossy = find_lossy_links(typical, self.leaders, self._hosts)
        slow = find_slow_links(typical, self._reference, self.leaders, self._hosts)
        self._reference = self._reference or typical
        explained = {*stragglers, *(host for link in lossy for host in link.hosts)}
        return [*lossy, *(link for link in slow if explained.isdisjoint(link.hosts))]


def find_slow_links(
    times: Sequence[HostTimes], reference: Sequence[HostTimes], ranks: Sequence[int], hosts: Sequence[str]
) -> list[SlowLink]:
    """Return the hosts whose messages are slow, compared with the other hosts, or, of two, with the start."""
    if len(hosts) >= _MIN_HOSTS_TO_COMPARE:
        usual_s = median(each.message_s for each in times)
        return [
            SlowLink((rank,), (host,), each.message_s, usual_s)
            for rank, host, each in zip(ranks, hosts, times, strict=True)
            if _is_slow(each, usual_s)
        ]
    both, usual_s = _take_longest(times), _take_longest(reference).message_s
    if reference and _is_slow(both, usual_s):
        return [SlowLink(tuple(ranks), tuple(hosts), both.message_s, usual_s)]
    return []


def find_lossy_links(times: Sequence[HostTimes], ranks: Sequence[int], hosts: Sequence[str]) -> list[SlowLink]:
    """Return the hosts that lose packets to every partner, if the others do not; of two hosts, both."""
    shares = [each.resent_share for each in times]
    is_compared = len(hosts) >= _MIN_HOSTS_TO_COMPARE
    usual_s = median(each.message_s for each in times)
    least = max(_MIN_RESENT_SHARE, _RESENT_FACTOR * median(shares) if is_compared else 0.0)
    lossy = [
        SlowLink((rank,), (host,), each.message_s, usual_s, each.resent_share)
        for rank, host, each in zip(ranks, hosts, times, strict=True)
        if each.resent_share > least
    ]
    if is_compared or not lossy:
        return lossy
    return [SlowLink(tuple(ranks), tuple(hosts), max(each.message_s for each in times), usual_s, max(shares))]


def pair_hosts(count: int, max_rounds: int = _MAX_ROUNDS) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs, in each of which every host has at most one partner; no pair comes twice."""
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(min(len(places) - 1, max_rounds)):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def measure_links(world: World, leaders: Sequence[int]) -> list[HostTimes]:
    """Return the times of each host; all ranks call it at the same step."""
    times = torch.zeros(len(leaders), 3, dtype=torch.float64)
    if world.rank in leaders:
        own = leaders.index(world.rank)
        partners = [a + b - own for pairs in pair_hosts(len(leaders)) for a, b in pairs if own in {a, b}]
        pairs = [_measure_pair(world, leaders[partner]) for partner in partners]
        message_s, resent_share = (min(values) for values in zip(*pairs, strict=True))
        times[own] = torch.tensor([message_s, _time_wait_for_core(), resent_share], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX, group=world.group)
    return [HostTimes(*each) for each in times.tolist()]


def _measure_pair(world: World, partner: int) -> tuple[float, float]:
    """Return the seconds of a message to another rank, and the share of packets that both hosts sent again meanwhile.

    A host that loses what arrives sends nothing again: its partner does.
    """
    before = read_sent_packets()
    message_s = _time_messages(world, partner)
    own = read_sent_packets() - before
    counts = torch.tensor([own.sent, own.resent], dtype=torch.int64)
    both = SentPackets(*(counts + _exchange(world, partner, counts)).tolist())
    return message_s, both.resent / max(both.sent, 1)


def _time_messages(world: World, partner: int) -> float:
    """Return the median seconds until a message has arrived at another rank and its own here; both do the same now."""
    token, message = torch.zeros(1, dtype=torch.uint8), torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    times = []
    for _ in range(_EXCHANGES):
        # The partner may come later, for which the link is not to blame.
        _exchange(world, partner, token)
        began = time.perf_counter()
        _exchange(world, partner, message)
        # A message counts as sent when the kernel has it, so only an answer shows that it has arrived.
        _exchange(world, partner, token)
        times.append(time.perf_counter() - began)
    return median(times)


def _time_wait_for_core() -> float:
    """Return the seconds that a piece of work takes beyond those in which it runs."""
    began, ran = time.perf_counter(), time.thread_time()
    while time.thread_time() - ran < _WORK_S:
        pass
    return time.perf_counter() - began - (time.thread_time() - ran)


def _exchange(world: World, partner: int, message: torch.Tensor) -> torch.Tensor:
    """Send a message and return that of the partner, which has the same size."""
    received = torch.empty_like(message)
    works = (
        dist.isend(message, partner, group=world.group, tag=_TAG),
        dist.irecv(received, partner, group=world.group, tag=_TAG),
    )
    for work in works:
        work.wait()
    return received


def _is_slow(times: HostTimes, usual_s: float) -> bool:
    min_delay_s = max(_MIN_DELAY_S, _WAITS_PER_MESSAGE * times.wait_s)
    return times.message_s > _FACTOR * usual_s and times.message_s - usual_s > min_delay_s


def _take_longest(times: Sequence[HostTimes]) -> HostTimes:
    return HostTimes(
        max((each.message_s for each in times), default=0.0), max((each.wait_s for each in times), default=0.0)
    )
