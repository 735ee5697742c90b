"""The collectives of each strategy in a step of four micro-batches, where ZeRO stages and accumulation differ."""

from __future__ import annotations

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings
from tests.trainer.test_parallel_engines import SHALLOW

# Embedding, two blocks, norm with head.
PARTS = 4
MICRO_BATCHES = 4
# The global norm needs one more all-reduce if gradients are sharded.
NORM = 1

TRAFFIC = {
    "ddp": {"allreduce_": 1},
    "ddp accumulate=sync": {"allreduce_": MICRO_BATCHES},
    "fsdp zero=1": {"_allgather_base_": PARTS, "_reduce_scatter_base_": PARTS, "allreduce_": NORM},
    "fsdp zero=2": {"_allgather_base_": PARTS, "_reduce_scatter_base_": PARTS * MICRO_BATCHES, "allreduce_": NORM},
    "fsdp zero=3": {
        "_allgather_base_": 2 * PARTS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS * MICRO_BATCHES,
        "allreduce_": NORM,
    },
    "fsdp zero=3 accumulate=defer": {
        "_allgather_base_": 2 * PARTS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS,
        "allreduce_": NORM,
    },
    "hsdp shard=2": {
        "_allgather_base_": 2 * PARTS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS * MICRO_BATCHES,
        "allreduce_": PARTS + NORM,
    },
    "hsdp shard=2 accumulate=sync": {
        "_allgather_base_": 2 * PARTS * MICRO_BATCHES,
        "_reduce_scatter_base_": PARTS * MICRO_BATCHES,
        "allreduce_": PARTS * MICRO_BATCHES + NORM,
    },
}


@pytest.mark.nightly_cases("fsdp zero=1", "hsdp shard=2 accumulate=sync", "fsdp zero=3 accumulate=defer")
@pytest.mark.parametrize("strategy", TRAFFIC)
def test_a_step_runs_the_expected_collectives(strategy: str) -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings(strategy)])
    expected = {f"c10d::{name}": count for name, count in TRAFFIC[strategy].items()}
    for calls in on_ranks("tests.trainer.curves:count_collectives", config=config, micro=1):
        assert calls == expected


def test_pipeline_stages_gather_and_reduce_once_per_step() -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings("fsdp zero=3 pipeline=2")])
    for calls in on_ranks("tests.trainer.curves:count_collectives", config=config, micro=1):
        assert calls["c10d::_allgather_base_"] == calls["c10d::_reduce_scatter_base_"] == PARTS // 2
