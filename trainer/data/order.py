"""Which sample comes when: a pure function of seed and position that knows no world size and keeps no list."""

from __future__ import annotations

from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.hashing import Words, key, words

Ids: TypeAlias = NDArray[np.int64]

# Four rounds of a Feistel network look random to a bounded observer; two more cost little and help tiny lengths.
_ROUNDS = 6


def sample_ids(seed: int, position: int, count: int, length: int) -> Ids:
    """Ids of the samples at positions [position, position + count); each epoch visits all `length` ids once."""
    positions = np.arange(position, position + count, dtype=np.int64)
    ids = np.empty(count, np.int64)
    for epoch in range(position // length, (position + count - 1) // length + 1):
        here = positions // length == epoch
        ids[here] = _permuted(positions[here] % length, length, key(seed, epoch))
    return ids


def share(batch_size: int, dp_rank: int, dp_size: int) -> slice:
    """The part of each global batch that one data-parallel rank takes."""
    if batch_size % dp_size:
        below, above = batch_size // dp_size * dp_size, -(-batch_size // dp_size) * dp_size
        near = above if not below else f"{below} or {above}"
        message = f"{batch_size} samples cannot be shared evenly by {dp_size} data-parallel ranks"
        raise ConfigError([ConfigProblem("batch.size", message, f"set batch.size to {near}")])
    each = batch_size // dp_size
    return slice(dp_rank * each, (dp_rank + 1) * each)


def _permuted(places: Ids, length: int, by: int) -> Ids:
    """A keyed permutation of [0, length): the network permutes a slightly larger grid, and what falls outside
    `length` goes through again until it is inside (cycle walking), which keeps it one-to-one."""
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    values = places.astype(np.uint64)
    values = _network(values, rows, columns, by)
    outside = np.flatnonzero(values >= length)
    while outside.size:
        values[outside] = _network(values[outside], rows, columns, by)
        outside = outside[values[outside] >= length]
    return values.astype(np.int64)


def _network(values: Words, rows: int, columns: int, by: int) -> Words:
    """Each round shifts one coordinate of a rows x columns grid by a hash of the other: always undoable."""
    row, column = np.divmod(values, np.uint64(columns))
    for number in range(_ROUNDS):
        if number % 2:
            column = (column + words(by + number, row) % np.uint64(columns)) % np.uint64(columns)
        else:
            row = (row + words(by + number, column) % np.uint64(rows)) % np.uint64(rows)
    return row * np.uint64(columns) + column
