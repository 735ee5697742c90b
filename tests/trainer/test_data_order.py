"""The order of samples: each epoch visits every id once, even if a run is interrupted or resized."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trainer.config.errors import ConfigError
from trainer.data.loader import Loader
from trainer.data.order import sample_ids, share_batch


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 65536, 100_003])
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_an_epoch_visits_every_sample_once(length, seed):
    first, second = np.split(sample_ids(seed, 0, 2 * length, length), 2)
    everything = np.arange(length)
    assert np.array_equal(np.sort(first), everything)
    assert np.array_equal(np.sort(second), everything)
    if length > 16:
        assert not np.array_equal(first, second)
        assert not np.array_equal(first, sample_ids(seed + 1, 0, length, length))


def test_ids_do_not_depend_on_the_first_position_requested():
    whole = sample_ids(5, 0, 1000, 300)
    assert np.array_equal(whole[123:777], sample_ids(5, 123, 654, 300))


def test_a_trillion_samples_need_no_list():
    ids = sample_ids(1, 7 * 10**12, 1000, 10**12)
    assert len(set(ids.tolist())) == 1000
    assert ids.min() >= 0
    assert ids.max() < 10**12


def test_the_order_looks_random():
    length = 10_000
    ids = sample_ids(3, 0, length, length)
    # In a random permutation neighbours are a third of the length apart on average, and about one point is fixed.
    assert abs(np.abs(np.diff(ids)).mean() / length - 1 / 3) < 0.01
    assert (ids == np.arange(length)).sum() < 8
    # Each tenth of the epoch draws evenly from each tenth of the samples.
    counts = np.histogram2d(np.arange(length), ids, bins=10)[0]
    assert np.abs(counts - 100).max() < 50


def test_every_permutation_of_few_samples_occurs():
    seen = {tuple(sample_ids(seed, 0, 4, 4).tolist()) for seed in range(1000)}
    assert len(seen) == 24


def test_the_order_does_not_change_between_versions():
    """A run resumed with a newer version of muster must continue in the same order."""
    assert sample_ids(1, 0, 8, 1000).tolist() == FIRST_OF_1000
    assert sample_ids(42, 99_999, 4, 50_000).tolist() == ACROSS_EPOCHS


FIRST_OF_1000 = [103, 35, 835, 569, 71, 666, 501, 7]
ACROSS_EPOCHS = [3451, 2490, 19898, 9232]


def test_the_shares_of_all_ranks_make_up_the_batch():
    batch = list(range(24))
    for size in (1, 2, 3, 4, 8):
        assert [sample for rank in range(size) for sample in batch[share_batch(24, rank, size)]] == batch


def test_an_indivisible_batch_is_rejected_with_sizes_that_work():
    with pytest.raises(ConfigError, match=r"batch\.size.*10 samples.*4 data-parallel ranks.*8 or 12"):
        share_batch(10, 0, 4)
    with pytest.raises(ConfigError, match=r"set batch\.size to 4"):
        share_batch(3, 0, 4)


class Numbers:
    """A source whose samples are their own ids."""

    def __init__(self, length):
        self.length = length

    def fetch(self, ids, epoch):
        return {"inputs": ids.copy(), "targets": np.full(len(ids), epoch)}


@pytest.mark.fault(37)
@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_resizes_never_skip_or_repeat_a_sample(seed):
    """Simulate random runs that train, sometimes save, crash, and resume with another world size.

    Only the samples that reached the final weights count, so steps after the last save before a crash do not. These
    samples must be every id of each epoch exactly once, in the order of an undisturbed run.
    """
    rng = random.Random(seed)
    length, batch, goal = rng.choice([64, 100, 1000, 37]), 16, 1600
    seen: list[int] = []
    epochs: list[int] = []
    saved = 0
    while saved < goal:
        dp_size = rng.choice([1, 2, 4, 8])
        loaders = [
            Loader(
                Numbers(length),
                seed,
                batch,
                dp_rank=rank,
                dp_size=dp_size,
                position=saved,
                workers=rng.choice([0, 1, 3]),
                ahead=rng.choice([1, 2]),
            )
            for rank in range(dp_size)
        ]
        del seen[saved:], epochs[saved:]
        for _ in range(rng.randrange(12)):
            batches = [next(loader) for loader in loaders]
            for part in batches:
                assert part.ids.tolist() == part.tensors["inputs"].tolist()
                seen += part.ids.tolist()
                epochs += part.tensors["targets"].tolist()
            assert {part.position for part in batches} == {len(seen)}
            if rng.random() < 0.3:
                saved = len(seen)
        for loader in loaders:
            loader.close()
    del seen[saved:], epochs[saved:]
    assert seen == sample_ids(seed, 0, saved, length).tolist()
    assert epochs == [position // length for position in range(saved)]
    for start in range(0, saved - length, length):
        assert sorted(seen[start : start + length]) == list(range(length))
