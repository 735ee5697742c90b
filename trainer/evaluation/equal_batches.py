"""Detect that ranks evaluate different numbers of batches, which would otherwise end in a hang without a message."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

from trainer.checkpoint.group import RankGroup
from trainer.config.errors import ConfigError, ConfigProblem

T = TypeVar("T")


def iterate_together(batches: Iterable[T], group: RankGroup) -> Iterator[T]:
    """Yield this rank's batches while all ranks have one; raise ConfigError on all ranks if only some of them have.

    A forward pass of sharded weights needs all ranks, so the ranks agree before each batch, by a number on the host.
    """
    iterator = iter(batches)
    for count in itertools.count():
        batch = next(iterator, None)
        is_any_ready, is_any_done = group.maximum([batch is not None, batch is None])
        if is_any_ready and is_any_done:
            raise ConfigError([_describe_difference(count, group.gather(batch is not None))])
        if batch is None:
            return
        yield batch


def _describe_difference(count: int, is_ready: list[bool]) -> ConfigProblem:
    done = [str(rank) for rank, has_batch in enumerate(is_ready) if not has_batch]
    ranks = f"ranks {', '.join(done)} have" if len(done) > 1 else f"rank {done[0]} has"
    message = f"{ranks} {count}, other ranks have more"
    return ConfigProblem("batches", message, "pass the same number of batches on every rank")
