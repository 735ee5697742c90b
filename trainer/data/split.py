"""Divide a data set into samples to train on and samples that are held out for evaluation."""

from __future__ import annotations

import numpy as np

from trainer.data.order import Ids
from trainer.data.source import Arrays, Source


class SourcePart:
    """Some samples of a data set, given as ranges of its sample numbers and numbered from 0 again."""

    def __init__(self, source: Source, starts: Ids, sizes: Ids) -> None:
        self._source = source
        self._starts = starts
        self._ends = np.cumsum(sizes)

    @property
    def length(self) -> int:
        return int(self._ends[-1])

    @property
    def group_sizes(self) -> Ids:
        return np.diff(self._ends, prepend=0)

    @property
    def fingerprint(self) -> str:
        return self._source.fingerprint

    @property
    def is_remote(self) -> bool:
        return self._source.is_remote

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        group = np.searchsorted(self._ends, ids, side="right")
        first = np.concatenate([[0], self._ends])[group]
        return self._source.fetch(self._starts[group] + ids - first, epoch)


def hold_out(source: Source, share: float) -> tuple[SourcePart, SourcePart]:
    """Return the part to train on and the part that is held out: the last `share` of each shard or class.

    Neighbours in a shard often belong to one document, and neighbours in a class may be almost equal images. The held
    out samples are therefore the last ones and not random ones, which would resemble samples of the training part.
    """
    sizes = np.asarray(source.group_sizes, np.int64)
    # Rounded over all groups together, so that many small shards do not round to nothing.
    ends = np.cumsum(sizes)
    held_out: Ids = np.diff(np.round(share * ends), prepend=0.0).astype(np.int64)
    starts = ends - sizes
    training = sizes - held_out
    return SourcePart(source, starts, training), SourcePart(source, starts + training, held_out)
