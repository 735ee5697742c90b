"""All-reduce on real numbers: bytes and rounds, and bitwise equality with the sum that folds one rank at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.emulate.all_reduce import ALGORITHMS, Algorithm, all_reduce, chunk_bounds, count_traffic, rounds_of
from simulator.emulate.fold import create_fold

ITEM_BYTES = 4
PER_NODE = 4


def gradients(ranks: int, elements: int) -> list[Any]:
    """Return arrays whose magnitudes differ so much that each order of summation gives different bits."""
    random = np.random.default_rng(ranks * 1000 + elements)
    return [
        (random.normal(size=elements) * 10.0 ** random.integers(-3, 4, elements)).astype(np.float32)
        for _ in range(ranks)
    ]


def run_all_reduce(algorithm: Algorithm, arrays: list[Any]) -> list[Any]:
    own = [array.copy() for array in arrays]
    all_reduce(own, rounds_of(algorithm, len(own), PER_NODE, len(own[0]), ITEM_BYTES), np.copy)
    return own


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("elements", [1, 7, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 12, 16])
def test_every_rank_gets_the_same_sum(algorithm: Algorithm, elements: int, ranks: int) -> None:
    arrays = gradients(ranks, elements)
    results = run_all_reduce(algorithm, arrays)
    assert all(np.array_equal(results[0], result) for result in results)
    np.testing.assert_allclose(results[0], np.sum(np.stack(arrays).astype(np.float64), axis=0), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("elements", [1, 7, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 12, 16])
def test_fold_by_rank_is_bitwise_equal_to_all_reduce(algorithm: Algorithm, elements: int, ranks: int) -> None:
    arrays = gradients(ranks, elements)
    fold = create_fold(algorithm, ranks, PER_NODE, np.copy)
    for rank in reversed(range(ranks)):
        scratch = arrays[rank].copy()
        fold.add(rank, scratch)
        scratch.fill(np.nan)
    assert np.array_equal(fold.total(), run_all_reduce(algorithm, arrays)[0])


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_fold_is_bitwise_equal_for_uneven_numbers_of_ranks(algorithm: Algorithm, ranks: int) -> None:
    arrays = gradients(ranks, 333)
    fold = create_fold(algorithm, ranks, PER_NODE, np.copy)
    for rank in reversed(range(ranks)):
        fold.add(rank, arrays[rank])
    results = run_all_reduce(algorithm, arrays)
    assert all(np.array_equal(fold.total(), result) for result in results)


def test_algorithms_differ_in_the_last_bits() -> None:
    arrays = gradients(8, 1000)
    sums = [run_all_reduce(algorithm, arrays)[0].tobytes() for algorithm in ALGORITHMS]
    assert len(set(sums)) == len(ALGORITHMS)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 256])
def test_ring_sends_the_expected_bytes_and_rounds(ranks: int) -> None:
    elements = 2 * ranks * 5
    traffic = count_traffic(rounds_of("ring", ranks, PER_NODE, elements, ITEM_BYTES), ranks, ITEM_BYTES)
    assert traffic.rounds == 2 * (ranks - 1)
    assert set(traffic.sent) == {2 * (ranks - 1) * elements * ITEM_BYTES // ranks}


@pytest.mark.parametrize(("ranks", "levels"), [(2, 1), (8, 3), (256, 8), (6, 3)])
def test_tree_has_two_rounds_per_level(ranks: int, levels: int) -> None:
    traffic = count_traffic(rounds_of("tree", ranks, PER_NODE, 100, ITEM_BYTES), ranks, ITEM_BYTES)
    assert traffic.rounds == 2 * levels
    assert sum(traffic.sent) == 2 * (ranks - 1) * 100 * ITEM_BYTES


def test_hierarchical_sends_one_share_per_rank_between_nodes() -> None:
    ranks, elements = 16, 16 * 4 * 10
    rounds = rounds_of("hierarchical", ranks, PER_NODE, elements, ITEM_BYTES)
    assert len(rounds) == 2 * (PER_NODE - 1) + 2 * (ranks // PER_NODE - 1)
    inside = 2 * (PER_NODE - 1) * elements * ITEM_BYTES // PER_NODE
    across = 2 * 3 * (elements // PER_NODE) * ITEM_BYTES // 4
    assert set(count_traffic(rounds, ranks, ITEM_BYTES).sent) == {inside + across}


@pytest.mark.parametrize(
    ("elements", "ranks", "expected"),
    [
        # There are at least two segments per rank, each with whole elements.
        (1, 4, [0, 1, 1, 1, 1]),
        (10, 2, [0, 6, 10]),
        (16, 4, [0, 4, 8, 12, 16]),
        (17, 4, [0, 6, 12, 17, 17]),
        # A segment has at most 1 MiB: 9 MiB are cut into 10 segments of 0.9 MiB.
        (9 << 18, 2, [0, 1179650, 9 << 18]),
    ],
)
def test_chunk_bounds_match_gloo(elements: int, ranks: int, expected: list[int]) -> None:
    assert chunk_bounds(elements, ranks, ITEM_BYTES) == expected
