"""Bandwidth figures: the formulas of nccl-tests, and message sizes from 1 KB to 64 MB."""

import pytest

from trainer.bandwidth import SIZES, AllReduceTime, count_rounds, format_report, format_size


@pytest.mark.parametrize(("world", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_follows_the_formula_of_nccl_tests(world: int, factor: float):
    measured = AllReduceTime(size=1_000_000, seconds=0.001, world=world)
    assert measured.algorithm == pytest.approx(1e9)
    assert measured.bus == pytest.approx(1e9 * factor)


def test_sizes_grow_by_four_from_1_kb_to_64_mb():
    assert [format_size(size) for size in SIZES] == [
        "1 KB",
        "4 KB",
        "16 KB",
        "64 KB",
        "256 KB",
        "1 MB",
        "4 MB",
        "16 MB",
        "64 MB",
    ]


def test_small_messages_are_repeated_more_often_than_large_ones():
    counts = [count_rounds(size) for size in SIZES]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 20
    assert counts[-1] == 3


def test_the_report_has_a_row_per_size():
    text = format_report([AllReduceTime(1024, 0.0005, 4), AllReduceTime(64 * 1024 * 1024, 0.5, 4)])
    assert text.splitlines()[0].split() == ["size", "time", "us", "algorithm", "MB/s", "bus", "MB/s"]
    assert text.splitlines()[3].split() == ["64", "MB", "500000.00", "134.22", "201.33"]
