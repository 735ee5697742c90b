"""Random numbers as a pure function of what they are for, so that nothing has to be remembered to repeat them."""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def key(*parts: int) -> int:
    """One 64-bit number that stands for several, such as (seed, epoch)."""
    return reduce(lambda state, part: int(words(state, np.array([part & _MASK], np.uint64))[0]), parts, 0)


def words(by: int, values: Words) -> Words:
    """64 random bits for each value; another `by` gives others that have nothing to do with them."""
    start = np.uint64(by * _GOLDEN + _GOLDEN & _MASK)
    return _mix(_mix(values + start))


def uniform(by: int, values: Words) -> NDArray[np.float64]:
    """A number in [0, 1) for each value."""
    return (words(by, values) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: Words) -> Words:
    """The finisher of SplitMix64 (https://prng.di.unimi.it/splitmix64.c)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
