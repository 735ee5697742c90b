"""Ignored targets: the mean is over the other targets, on whichever rank and micro-batch they are."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.test_parallel_engines import FEW, LOSS_TOLERANCE, NORM_TOLERANCE, settings

STEPS = 4
STRATEGIES = {
    "ddp": "ddp",
    "ddp, compiled whole": "ddp",
    "hsdp": "hsdp shard=2",
    "pipeline with fsdp": "fsdp pipeline=2",
    "tensor with ddp": "ddp tensor=2",
}
COMPILED = ("compile.mode=whole", "compile.backend=eager")


def curves_of(strategy: str, *more: str, ranks: int = 4, micro: int = 1, **options: Any) -> list[Any]:
    config = config_of("tiny-llama", [*FEW, *settings(strategy), *more])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=micro, steps=STEPS, **options)


@cache
def in_one_piece() -> dict[str, list[float]]:
    """Return the curves of one rank and one micro-batch, which have only one mean."""
    (curves,) = curves_of("single", ranks=1, micro=8, left_out=True)
    return curves


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_split_step_equals_the_step_in_one_piece(name: str) -> None:
    more = COMPILED if "compiled" in name else ()
    for curves in curves_of(STRATEGIES[name], *more, counted=True, left_out=True):
        assert curves["loss"] == pytest.approx(in_one_piece()["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(in_one_piece()["norm"], rel=NORM_TOLERANCE)


def test_giving_micro_batches_equal_weight_would_differ() -> None:
    (curves,) = curves_of("single", ranks=1, left_out=True)
    assert abs(curves["loss"][0] - in_one_piece()["loss"][0]) > 100 * LOSS_TOLERANCE


@pytest.mark.parametrize("strategy", ["ddp", "hsdp shard=2"])
def test_without_ignored_targets_no_bit_changes(strategy: str) -> None:
    assert curves_of(strategy, counted=True) == curves_of(strategy)
