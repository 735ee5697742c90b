"""The order of samples: a function of seed and position only. It needs no list and no knowledge of the world size."""

from __future__ import annotations

from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem, list_nearest_multiples
from trainer.data.hashing import Uint64s, hash_values, make_key

Ids: TypeAlias = NDArray[np.int64]

# Four rounds of a Feistel network look random to a bounded observer; two more cost little and help small data sets.
_ROUNDS = 6


def sample_ids(seed: int, position: int, count: int, length: int) -> Ids:
    """Return the ids of the samples at positions [position, position + count).

    Each epoch visits all `length` ids once.
    """
    positions = np.arange(position, position + count, dtype=np.int64)
    ids = np.empty(count, np.int64)
    for epoch in range(position // length, (position + count - 1) // length + 1):
        in_epoch = positions // length == epoch
        ids[in_epoch] = _permute(positions[in_epoch] % length, length, make_key(seed, epoch))
    return ids


def share_batch(batch_size: int, dp_rank: int, dp_size: int) -> slice:
    """Return the part of each global batch that belongs to a data-parallel rank."""
    if batch_size % dp_size:
        message = f"{batch_size} samples cannot be divided evenly among {dp_size} data-parallel ranks"
        fix = f"set batch.size to {list_nearest_multiples(batch_size, dp_size)}"
        raise ConfigError([ConfigProblem("batch.size", message, fix)])
    per_rank = batch_size // dp_size
    return slice(dp_rank * per_rank, (dp_rank + 1) * per_rank)


def _permute(positions: Ids, length: int, key: int) -> Ids:
    """Apply a keyed permutation of [0, length).

    The network permutes a slightly larger grid. Values outside `length` go through it again until they are inside
    (cycle walking), which keeps the mapping one-to-one.
    """
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    values = _apply_network(positions.astype(np.uint64), rows, columns, key)
    outside = np.flatnonzero(values >= length)
    while outside.size:
        values[outside] = _apply_network(values[outside], rows, columns, key)
        outside = outside[values[outside] >= length]
    return values.astype(np.int64)


def _apply_network(values: Uint64s, rows: int, columns: int, key: int) -> Uint64s:
    """Shift, in each round, one coordinate of a rows x columns grid by a hash of the other; this is invertible."""
    row, column = np.divmod(values, np.uint64(columns))
    for number in range(_ROUNDS):
        if number % 2:
            column = (column + hash_values(key + number, row) % np.uint64(columns)) % np.uint64(columns)
        else:
            row = (row + hash_values(key + number, column) % np.uint64(rows)) % np.uint64(rows)
    return row * np.uint64(columns) + column
