"""Random numbers as a pure function of a key and a value, so that they can be repeated without storing any state."""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Uint64s: TypeAlias = NDArray[np.uint64]

_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def make_key(*parts: int) -> int:
    """Combine several numbers, such as seed and epoch, into one 64-bit key."""
    return reduce(lambda key, part: int(hash_values(key, np.array([part & _MASK], np.uint64))[0]), parts, 0)


def hash_values(key: int, values: Uint64s) -> Uint64s:
    """Return 64 random bits for each value; the bits for different keys are independent."""
    start = np.uint64(key * _GOLDEN_RATIO + _GOLDEN_RATIO & _MASK)
    return _mix(_mix(values + start))


def hash_uniform(key: int, values: Uint64s) -> NDArray[np.float64]:
    """Return a random number in [0, 1) for each value."""
    return (hash_values(key, values) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: Uint64s) -> Uint64s:
    """Apply the finalizer of SplitMix64 (https://prng.di.unimi.it/splitmix64.c)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
