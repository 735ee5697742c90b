"""The order of samples when only a few shards are shuffled together, so that a run reads shards one after the other."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trainer.data.hashing import make_key
from trainer.data.order import Ids, sample_ids

_SHARDS, _SAMPLES = 0x73686172, 0x73616D70


class ShardOrder:
    """An order that visits the shards of each epoch in a random order, `window` of them at a time.

    The samples of a window are shuffled. Like the order of all samples, it is a function of seed and position.
    """

    def __init__(self, seed: int, sizes: Ids, window: int) -> None:
        self._seed = seed
        self._sizes = np.asarray(sizes, np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._window = window
        self.length = int(self._sizes.sum())

    def sample_ids(self, position: int, count: int) -> Ids:
        """Return the ids of the samples at positions [position, position + count)."""
        ids = np.empty(count, np.int64)
        done = 0
        while done < count:
            epoch, offset = divmod(position + done, self.length)
            part = self._read_window(epoch, offset, count - done)
            ids[done : done + len(part)] = part
            done += len(part)
        return ids

    def _read_window(self, epoch: int, offset: int, count: int) -> Ids:
        """Return the ids from an offset in an epoch on, at most up to the end of its window."""
        shards = order_shards(self._seed, epoch, len(self._sizes))
        ends = np.cumsum(self._sizes[shards])
        last = np.arange(self._window, len(shards) + self._window, self._window).clip(max=len(shards)) - 1
        window_ends = ends[last]
        number = int(np.searchsorted(window_ends, offset, side="right"))
        start = int(window_ends[number - 1]) if number else 0
        length = int(window_ends[number]) - start
        key = make_key(self._seed, _SAMPLES, epoch, number)
        places = start + sample_ids(key, offset - start, min(count, start + length - offset), length)
        nth = np.searchsorted(ends, places, side="right")
        shard = shards[nth]
        return self._starts[shard] + places - (ends[nth] - self._sizes[shard])


@lru_cache(maxsize=16)
def order_shards(seed: int, epoch: int, count: int) -> Ids:
    """Return the numbers of all shards in the order in which an epoch visits them."""
    return sample_ids(make_key(seed, _SHARDS, epoch), 0, count, count)


def list_upcoming(seed: int, epoch: int, count: int, window: int, shard: int) -> list[int]:
    """Return the shards of the window that contains `shard` and of the next one, in the order of reading."""
    shards = order_shards(seed, epoch, count)
    first = int(np.flatnonzero(shards == shard)[0]) // window * window
    upcoming = shards[first : first + 2 * window].tolist()
    if first + window >= count:
        upcoming += order_shards(seed, epoch + 1, count)[:window].tolist()
    return list(dict.fromkeys(upcoming))
