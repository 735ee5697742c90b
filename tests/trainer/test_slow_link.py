"""Slow links: when hosts are measured, which of them is named, and how real ranks measure."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed

from tests.trainer.ranks import on_ranks
from trainer.life.resent_packets import SentPackets, read_sent_packets
from trainer.life.slow_link import HostTimes, LinkWatch, find_lossy_links, find_slow_links, measure_links, pair_hosts
from trainer.world import Member, World

HOSTS = ["a", "a", "b", "b", "c", "c"]
# Runs a process for a tenth of the time.
STARVE = "while kill -STOP {pid}; do sleep 0.18; kill -CONT {pid}; sleep 0.02; done 2>/dev/null"


def times(*message_s: float, wait_s: Sequence[float] = ()) -> list[HostTimes]:
    waits = wait_s or [0.0] * len(message_s)
    return [HostTimes(message, wait) for message, wait in zip(message_s, waits, strict=True)]


EVEN, SLOW_C = times(0.001, 0.001, 0.001), times(0.001, 0.001, 0.080)


def report(
    watch: LinkWatch, measured: list[HostTimes], *windows: float, stragglers: Sequence[str] = ()
) -> list[list[str]]:
    """Return what is reported in each window of five steps of this length."""
    return [
        [str(slow) for _ in range(5) if watch.observe(step_s) for slow in watch.judge(measured, stragglers)]
        for step_s in windows
    ]


def test_a_link_that_becomes_slow_is_reported_once_with_its_rank_and_host() -> None:
    watch = LinkWatch(HOSTS, factor=1.3, window=5)
    assert report(watch, EVEN, *[0.1] * 8) == [[]] * 8
    name = "rank 4 on c: 512 KiB to its best partner take 80.0 ms, 80.0 times the median of 1.0 ms"
    # Three windows until it counts, of which the last is the first of three measurements.
    assert report(watch, SLOW_C, *[0.5] * 9) == [[], [], [], [], [name], [], [], [], []]
    # It is reported again if it ends and returns.
    assert report(watch, EVEN, *[0.1] * 2) == [[]] * 2
    assert report(watch, SLOW_C, *[0.5] * 5) == [[], [], [], [], [name]]


def test_a_link_that_is_slow_from_the_start_is_reported_and_steps_without_a_time_are_not_counted() -> None:
    watch = LinkWatch(HOSTS, factor=1.3, window=5)
    reports = report(watch, SLOW_C, 0.0, 9.0, 0.5, 0.5, 0.5)
    assert [len(names) for names in reports] == [0, 0, 0, 0, 1]


def test_slow_steps_with_even_links_and_single_slow_windows_are_not_reported() -> None:
    watch = LinkWatch(HOSTS, factor=1.3, window=5)
    assert report(watch, EVEN, *[0.1] * 4, *[0.5] * 6) == [[]] * 10
    watch = LinkWatch(HOSTS, factor=1.3, window=5)
    report(watch, EVEN, *[0.1] * 4)
    assert report(watch, SLOW_C, 0.5, 0.5, 0.1, 0.5, 0.5, 0.1) == [[]] * 6


def test_what_is_slow_on_the_host_of_a_straggler_is_no_link() -> None:
    for stragglers, names in ((["c"], 0), (["a"], 1)):
        watch = LinkWatch(HOSTS, factor=1.3, window=5)
        report(watch, EVEN, *[0.1] * 8)
        assert [len(each) for each in report(watch, SLOW_C, *[0.5] * 5, stragglers=stragglers)] == [0, 0, 0, 0, names]


def test_ranks_of_one_host_are_never_measured() -> None:
    assert not any(LinkWatch(["a"] * 4, factor=1.3, window=1).observe(0.1) for _ in range(9))


@pytest.mark.parametrize(
    ("seconds", "reference", "hosts"),
    [
        ([0.001, 0.001, 0.0019, 0.001], [], []),
        # Twice the others, but too little to matter.
        ([0.001, 0.001, 0.0025, 0.001], [], []),
        ([0.01, 0.01, 0.03, 0.01], [], [("c",)]),
        ([0.01, 0.05, 0.03, 0.01, 0.01], [], [("b",), ("c",)]),
        # All are slow alike: the network, or a busy machine.
        ([0.08, 0.08, 0.08], [0.001, 0.001, 0.001], []),
        ([0.08, 0.08], [], []),
        ([0.08, 0.08], [0.07, 0.07], []),
        ([0.08, 0.08], [0.001, 0.001], [("a", "b")]),
    ],
)
def test_a_host_is_compared_with_the_others_and_two_with_their_start(
    seconds: list[float], reference: list[float], hosts: list[tuple[str, ...]]
) -> None:
    names = "abcde"[: len(seconds)]
    slow = find_slow_links(times(*seconds), times(*reference), range(len(seconds)), names)
    assert [link.hosts for link in slow] == hosts


@pytest.mark.parametrize(
    ("seconds", "wait_s", "reference", "hosts"),
    [
        ([0.001, 0.001, 0.080], [0.0, 0.0, 0.080], [], []),
        ([0.001, 0.001, 0.080], [0.0, 0.0, 0.020], [], [("c",)]),
        # All cores are busy, and a link is slow too.
        ([0.050, 0.050, 0.800], [0.060, 0.060, 0.060], [], [("c",)]),
        ([0.080, 0.080], [0.080, 0.0], [0.001, 0.001], []),
        ([0.080, 0.080], [0.010, 0.0], [0.001, 0.001], [("a", "b")]),
    ],
)
def test_what_a_lack_of_cores_explains_is_no_slow_link(
    seconds: list[float], wait_s: list[float], reference: list[float], hosts: list[tuple[str, ...]]
) -> None:
    slow = find_slow_links(
        times(*seconds, wait_s=wait_s), times(*reference), range(len(seconds)), "abc"[: len(seconds)]
    )
    assert [link.hosts for link in slow] == hosts


@pytest.mark.parametrize(
    ("shares", "hosts"),
    [
        ([0.0, 0.0, 0.004], []),
        ([0.0, 0.0, 0.08], [("c",)]),
        ([0.0, 0.05, 0.0, 0.08, 0.0], [("b",), ("d",)]),
        # The network loses packets everywhere, and one host loses many more.
        ([0.02, 0.02, 0.03], []),
        ([0.01, 0.01, 0.09], [("c",)]),
        ([0.0, 0.0], []),
        ([0.08, 0.08], [("a", "b")]),
    ],
)
def test_a_host_that_loses_packets_to_every_partner_is_named(shares: list[float], hosts: list[tuple[str, ...]]) -> None:
    measured = [HostTimes(0.001, 0.0, share) for share in shares]
    lossy = find_lossy_links(measured, range(len(shares)), "abcde"[: len(shares)])
    assert [link.hosts for link in lossy] == hosts


def test_a_lossy_link_is_reported_once_although_its_messages_are_slow_and_its_ranks_wait_for_cores() -> None:
    watch = LinkWatch(HOSTS, factor=1.3, window=5)
    lossy = [*EVEN[:2], HostTimes(0.080, 0.1, 0.0812)]
    name = "rank 4 on c: 8.1% of the packets were lost and sent again, also to its best partner"
    assert report(watch, lossy, *[0.1] * 4, stragglers=["c"]) == [[], [], [], [name]]


def test_the_kernels_counters_are_read_by_their_names(tmp_path: Path) -> None:
    counters = tmp_path / "snmp"
    assert read_sent_packets(counters) == SentPackets()
    counters.write_text("Icmp: InMsgs\nIcmp: 5\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 70 8\nUdp: OutSegs\nUdp: 9\n")
    assert read_sent_packets(counters) == SentPackets(70, 8)
    assert read_sent_packets(counters) - SentPackets(60, 5) == SentPackets(10, 3)
    before = read_sent_packets()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"x")
    assert (read_sent_packets() - before).sent > 0


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64])
def test_every_host_has_partners_and_never_two_at_once(count: int) -> None:
    rounds = pair_hosts(count)
    pairs = [pair for round_ in rounds for pair in round_]
    assert len(rounds) <= 7
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(len({host for pair in round_ for host in pair}) == 2 * len(round_) for round_ in rounds)
    assert {host for pair in pairs for host in pair} == set(range(count))


def measured_on_ranks(rounds: int, starved: int | None = None) -> list[list[HostTimes]]:
    """Run on a rank: measure the links of three hosts, of which the first has two ranks; a rank may get no core."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    first = Member(rank, size, 0, "a", "", "cpu")
    members = tuple(replace(first, rank=r, host="aabc"[r]) for r in range(size))
    group = torch.distributed.group.WORLD
    world = World(rank, size, 0, 1, "", torch.device("cpu"), members, group)
    if rank != starved:
        return [measure_links(world, [0, 2, 3]) for _ in range(rounds)]
    own = os.getpid()
    starve = subprocess.Popen(["sh", "-c", STARVE.format(pid=own)])
    try:
        time.sleep(0.3)
        return [measure_links(world, [0, 2, 3]) for _ in range(rounds)]
    finally:
        # It goes on if this process is stopped now; whoever ends it must not be the one that it stops.
        subprocess.run(["sh", "-c", f"kill -KILL {starve.pid}; kill -CONT {own}"], check=True)
        starve.wait()


def test_all_ranks_get_the_same_times() -> None:
    results = on_ranks(f"{__name__}:measured_on_ranks", rounds=3)
    assert results == [results[0]] * 4
    assert all(0 < each.message_s < 10 and 0 <= each.wait_s < 10 for measured in results[0] for each in measured)
    assert all(each.resent_share < 0.01 for measured in results[0] for each in measured)


def test_a_rank_that_gets_no_core_is_no_slow_link() -> None:
    measured = on_ranks(f"{__name__}:measured_on_ranks", rounds=3, starved=3)[0]
    assert median(hosts[2].wait_s for hosts in measured) > 0.1
    watch = LinkWatch(HOSTS, factor=1.3, window=1)
    watch.observe(0.1)
    reported = [slow.hosts for hosts in measured if watch.observe(0.1) for slow in watch.judge(hosts)]
    assert ("c",) not in reported
