"""The position of each rank in the layout, and the errors for rank counts that do not fit."""

from __future__ import annotations

import pytest

from trainer.config.errors import ConfigError
from trainer.config.layout import Layout, resolve_layout
from trainer.config.schema import ParallelConfig

VALID = {
    "single": (ParallelConfig(strategy="single"), 1, 1, Layout()),
    "ddp uses the remaining ranks": (ParallelConfig(strategy="ddp", tensor=2), 8, 4, Layout(replicate=4, tensor=2)),
    "fsdp uses the remaining ranks": (ParallelConfig(strategy="fsdp", pipeline=2), 8, 4, Layout(pipeline=2, shard=4)),
    "hsdp shards within a node": (ParallelConfig(strategy="hsdp"), 8, 4, Layout(replicate=2, shard=4)),
    "hsdp shards within a node, divided by tensor": (
        ParallelConfig(strategy="hsdp", tensor=2),
        16,
        8,
        Layout(replicate=2, shard=4, tensor=2),
    ),
    "hsdp with a given shard": (ParallelConfig(strategy="hsdp", shard=2), 8, 4, Layout(replicate=4, shard=2)),
    "ddp with context": (ParallelConfig(strategy="ddp", context=2), 8, 4, Layout(replicate=4, context=2)),
    "fsdp with context": (ParallelConfig(strategy="fsdp", context=2), 8, 4, Layout(shard=4, context=2)),
    "hsdp with context shards within a node": (
        ParallelConfig(strategy="hsdp", context=2),
        8,
        4,
        Layout(replicate=2, shard=2, context=2),
    ),
    "hsdp with a given shard that includes context": (
        ParallelConfig(strategy="hsdp", context=2, shard=2),
        8,
        4,
        Layout(replicate=4, context=2),
    ),
    "hsdp with a context larger than a node": (
        ParallelConfig(strategy="hsdp", context=4),
        8,
        2,
        Layout(replicate=2, context=4),
    ),
    "single with context": (ParallelConfig(strategy="single", context=4), 4, 4, Layout(context=4)),
    "single with tensor and pipeline": (
        ParallelConfig(strategy="single", tensor=2, pipeline=2),
        4,
        4,
        Layout(pipeline=2, tensor=2),
    ),
    "experts": (ParallelConfig(strategy="hsdp", shard=2, expert=4), 8, 4, Layout(replicate=4, shard=2, expert=4)),
}
INVALID = {
    "a pipeline on one rank": (
        ParallelConfig(strategy="single", engine="muster", pipeline=2),
        1,
        "parallel: pipeline 2 x tensor 1 = 2 does not divide 1 ranks; use 2 ranks, or a pipeline x tensor out of 1",
    ),
    "tensor parallelism on one rank": (
        ParallelConfig(strategy="single", engine="muster", tensor=2),
        1,
        "parallel: pipeline 1 x tensor 2 = 2 does not divide 1 ranks; use 2 ranks, or a pipeline x tensor out of 1",
    ),
    "pipeline x tensor": (
        ParallelConfig(strategy="ddp", tensor=2, pipeline=2),
        6,
        "parallel: pipeline 2 x tensor 2 = 4 does not divide 6 ranks; "
        "use 4 or 8 ranks, or a pipeline x tensor out of 1, 2, 3, 6",
    ),
    "single": (
        ParallelConfig(strategy="single"),
        4,
        "parallel.strategy: single uses pipeline 1 x tensor 1 ranks, but there are 4; "
        "set parallel.strategy to ddp, fsdp or hsdp, or start 1",
    ),
    "shard": (
        ParallelConfig(strategy="hsdp", shard=3),
        8,
        "parallel.shard: 3 does not divide the 8 data-parallel ranks; use one of 1, 2, 4, 8",
    ),
    "context": (
        ParallelConfig(strategy="fsdp", context=3, tensor=2),
        8,
        "parallel: pipeline 1 x context 3 x tensor 2 = 6 does not divide 8 ranks; "
        "use 6 or 12 ranks, or a pipeline x context x tensor out of 1, 2, 4, 8",
    ),
    "single with too many ranks for context": (
        ParallelConfig(strategy="single", context=2),
        4,
        "parallel.strategy: single uses pipeline 1 x context 2 x tensor 1 ranks, but there are 4; "
        "set parallel.strategy to ddp, fsdp or hsdp, or start 2",
    ),
    "shard that splits a context group": (
        ParallelConfig(strategy="hsdp", shard=2, context=4),
        8,
        "parallel.shard: 2 is not a multiple of parallel.context 4, whose ranks share one copy; "
        "use 4, or 0 for the ranks of a node",
    ),
    "shard with context": (
        ParallelConfig(strategy="hsdp", shard=6, context=2),
        8,
        "parallel.shard: 6 does not divide the 8 data x context ranks; use one of 2, 4, 8",
    ),
    "expert": (
        ParallelConfig(strategy="ddp", pipeline=2, expert=8),
        8,
        "parallel.expert: 8 does not divide the 4 data-parallel ranks; use one of 1, 2, 4",
    ),
}


@pytest.mark.parametrize(("parallel", "world", "local", "layout"), VALID.values(), ids=VALID)
def test_the_layout_has_the_expected_axes(parallel: ParallelConfig, world: int, local: int, layout: Layout) -> None:
    assert resolve_layout(parallel, world, local) == layout
    assert layout.world_size == world


@pytest.mark.parametrize(("parallel", "world", "message"), INVALID.values(), ids=INVALID)
def test_rank_counts_that_do_not_fit_are_rejected(parallel: ParallelConfig, world: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_layout(parallel, world, world)
    assert str(error.value) == message


def test_tensor_groups_are_neighbours_and_every_position_has_one_rank() -> None:
    layout = Layout(pipeline=2, replicate=2, shard=2, tensor=2)
    assert [layout.coordinate(rank, "tensor") for rank in range(4)] == [0, 1, 0, 1]
    assert [layout.coordinate(rank, "pipeline") for rank in (0, 7, 8, 15)] == [0, 0, 1, 1]
    positions = {
        (layout.coordinate(r, "pipeline"), layout.coordinate(r, "tensor"), layout.dp_rank(r)) for r in range(16)
    }
    assert positions == {(p, t, d) for p in range(2) for t in range(2) for d in range(4)}


def test_context_groups_are_neighbours_around_tensor_groups() -> None:
    layout = Layout(replicate=2, context=2, tensor=2)
    assert layout.list_groups("context") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [layout.dp_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_context_ranks_share_weights_with_fully_shard_and_copy_them_otherwise() -> None:
    layout = Layout(replicate=2, shard=3, context=4, tensor=5)
    assert layout.merge_context(uses_fully_shard=True) == Layout(replicate=2, shard=12, tensor=5)
    assert layout.merge_context(uses_fully_shard=False) == Layout(replicate=8, shard=3, tensor=5)
    assert Layout(shard=2).merge_context(uses_fully_shard=False) == Layout(shard=2)
