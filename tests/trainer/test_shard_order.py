"""The order of samples in windows of shards: each epoch visits every sample once, and versions agree."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.shard_order import ShardOrder, list_upcoming, order_shards


@pytest.mark.parametrize(("count", "window"), [(1, 1), (5, 2), (7, 3), (4, 9), (6, 1)])
def test_an_epoch_of_windows_visits_every_sample_once(count: int, window: int) -> None:
    sizes = np.arange(count) * 3 % 7 + (np.arange(count) == 0)
    order = ShardOrder(3, sizes, window)
    shard_of = np.repeat(np.arange(count), sizes)
    whole = order.sample_ids(0, 3 * order.length)
    for epoch in range(3):
        ids = whole[epoch * order.length : (epoch + 1) * order.length]
        assert sorted(ids) == list(range(order.length))
        place = np.argsort(order_shards(3, epoch, count))[shard_of[ids]] // window
        assert (np.diff(place) >= 0).all()  # one window after the other
    assert whole.tolist() == [int(order.sample_ids(position, 1)[0]) for position in range(3 * order.length)]
    last = int(order_shards(3, 0, count)[-1])
    upcoming = list_upcoming(3, 0, count, window, last)
    assert set(order_shards(3, 1, count)[:window].tolist()) | {last} <= set(upcoming)


def test_the_order_of_windows_does_not_change_between_versions() -> None:
    """A run resumed with a newer version of muster must continue in the same order."""
    assert ShardOrder(1, np.array([3, 4, 5, 6]), 2).sample_ids(4, 12).tolist() == FROM_4


FROM_4 = [0, 8, 9, 1, 13, 12, 15, 16, 3, 4, 17, 6]
