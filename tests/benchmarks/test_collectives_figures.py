"""The figures of all-reduces beside torch's: ratios of pairs, their spread, and which of them have bounds."""

from __future__ import annotations

import pytest

from benchmarks.collectives_figures import Pair, Times, count_rounds, format_times, list_figures

MEBIBYTE = 1 << 20


def measured(**ours: float) -> Times:
    # The machine becomes slower from round to round, and both calls of a pair with it.
    pairs = {name: [Pair(seconds * load, load, 3.0, 1.5) for load in (1.0, 2.0, 4.0)] for name, seconds in ours.items()}
    return Times([0.5] * 3, [0.001] * 3, pairs)


def test_a_ratio_is_that_of_the_calls_of_a_pair() -> None:
    text = format_times(MEBIBYTE, measured(ring=2.0), None)
    assert "0.50 (middle half 0.50 to 0.50, all 0.50 to 0.50, 3 pairs)" in text
    assert [line.split()[5] for line in text.splitlines()[3:]] == ["1500.00", "3000.00"]
    figure = list_figures({MEBIBYTE: measured(ring=2.0)}, None)[0]
    assert (figure.value, figure.reference) == (2.0, "torch 2000.0 ms, middle half 2.00 to 2.00, 3 pairs")


def test_on_one_machine_the_faster_pattern_of_each_size_has_a_bound() -> None:
    times = measured(ring=1.12, hierarchical=1.1, tree=0.5)
    figures = list_figures({MEBIBYTE: times, 4 * MEBIBYTE: measured(ring=1.12)}, None)
    assert [(figure.name, figure.verdict) for figure in figures] == [
        ("1 MB: hierarchical, times torch's time", "pass"),
        ("4 MB: ring, times torch's time", "FAIL"),
    ]


def test_on_a_slow_link_hierarchical_has_a_bound_at_the_largest_size() -> None:
    times = measured(ring=0.5, hierarchical=0.9)
    figures = list_figures({MEBIBYTE: times, 4 * MEBIBYTE: times}, 200)
    assert [figure.value for figure in figures] == pytest.approx([0.9, 0.9])
    assert [figure.verdict for figure in figures] == ["", "FAIL"]


@pytest.mark.parametrize(("mebibytes", "rounds"), [(1, 101), (4, 80), (16, 20), (64, 5), (256, 5)])
def test_small_messages_have_more_rounds_on_one_machine(mebibytes: int, rounds: int) -> None:
    assert count_rounds(mebibytes * MEBIBYTE, 5, None) == rounds
    assert count_rounds(mebibytes * MEBIBYTE, 5, 200) == 5
