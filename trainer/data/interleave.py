"""Which data set of a mixture each position takes: a pure function of weights, seed and position, without any list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from trainer.data.hashing import make_key
from trainer.data.order import Ids

# Weights become whole numbers with this sum, so that counts are exact at any position below 2^42.
_RESOLUTION = 1 << 20
_PHASE = 0x6D6978


def scale_weights(weights: Sequence[float]) -> list[int]:
    """Return the weights as whole numbers in the same proportion; a tiny weight does not become 0."""
    total = sum(weights)
    return [max(1, round(weight / total * _RESOLUTION)) for weight in weights]


def count_draws(shares: Sequence[int], seed: int, positions: Ids) -> Ids:
    """Return, as sources x positions, how many samples of each source come before each position.

    The first source takes every n-th position, evenly spread; the positions that it leaves are divided among the others
    in the same way. From one position to the next exactly one count grows, by one. A count deviates from
    share x position by less than 1 + 1/2 + ... + 1/sources, because the largest shares are taken first; a share is the
    weight rounded to a multiple of 2^-20, and at least that.
    """
    counts = np.empty((len(shares), len(positions)), np.int64)
    left = positions
    for number, total, phase in _plan_sources(tuple(shares), seed):
        counts[number] = (left * shares[number] + phase) // total
        left = left - counts[number]
    return counts


@lru_cache(maxsize=16)
def _plan_sources(shares: tuple[int, ...], seed: int) -> list[tuple[int, int, int]]:
    """Return, from the largest share on, the number of each source, the sum of its share and the later ones, its phase.

    The phase shifts the pattern, so that another seed takes other sources at the same position.
    """
    plan, total = [], sum(shares)
    for number in sorted(range(len(shares)), key=lambda number: -shares[number]):
        plan.append((number, total, make_key(seed, _PHASE, number) % total))
        total -= shares[number]
    return plan
