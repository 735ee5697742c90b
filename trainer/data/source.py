"""The interface of a data source: samples by number."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from trainer.data.order import Ids

Arrays = dict[str, NDArray[Any]]
"""A batch before it becomes tensors: "inputs" and "targets", each with one row per sample.

A mixture adds "sources", the number of each sample's data set.
"""


class Source(Protocol):
    """A data set whose samples are numbered from 0.

    `fetch` is called by several threads and must be a pure function of its arguments.
    """

    @property
    def length(self) -> int:
        """Samples in an epoch."""

    @property
    def group_sizes(self) -> Ids:
        """Sizes of the consecutive groups that the samples form, such as shards or classes."""

    @property
    def fingerprint(self) -> str:
        """A checksum that changes if other samples are read; empty if settings alone determine the samples."""

    @property
    def is_remote(self) -> bool:
        """Whether samples are read over a network with retries, which may take minutes."""

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        """Return {"inputs", "targets"}; their first dimension is in the order of `ids`.

        Random changes of the samples, such as crops, depend on the epoch. None means no random changes.
        """
