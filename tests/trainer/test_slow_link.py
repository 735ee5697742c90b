"""Slow links: when hosts are measured, which of them is named, and how real ranks measure."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed

from tests.trainer.ranks import on_ranks
from trainer.life.slow_link import LinkWatch, find_slow_links, measure_links, pair_hosts
from trainer.world import Member, World

HOSTS = ["a", "a", "b", "b", "c", "c"]
EVEN, SLOW_C = [0.001, 0.001, 0.001], [0.001, 0.001, 0.080]


def report(watch: LinkWatch, measured: list[float], *windows: float) -> list[list[str]]:
    """Return what is reported in each window of five steps of this length."""
    return [
        [str(slow) for _ in range(5) if watch.observe(step_s) for slow in watch.judge(measured)] for step_s in windows
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
    assert [slow.hosts for slow in find_slow_links(seconds, reference, range(len(seconds)), names)] == hosts


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64])
def test_every_host_has_partners_and_never_two_at_once(count: int) -> None:
    rounds = pair_hosts(count)
    pairs = [pair for round_ in rounds for pair in round_]
    assert len(rounds) <= 7
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(len({host for pair in round_ for host in pair}) == 2 * len(round_) for round_ in rounds)
    assert {host for pair in pairs for host in pair} == set(range(count))


def measured_on_ranks(rounds: int) -> list[list[float]]:
    """Run on a rank: measure the links of three hosts, of which the first has two ranks."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    first = Member(rank, size, 0, "a", "", "cpu")
    members = tuple(replace(first, rank=r, host="aabc"[r]) for r in range(size))
    group = torch.distributed.group.WORLD
    world = World(rank, size, 0, 1, "", torch.device("cpu"), members, group)
    return [measure_links(world, [0, 2, 3]) for _ in range(rounds)]


def test_all_ranks_get_the_same_times() -> None:
    results = on_ranks(f"{__name__}:measured_on_ranks", rounds=3)
    assert results == [results[0]] * 4
    assert all(0 < seconds < 10 for times in results[0] for seconds in times)
