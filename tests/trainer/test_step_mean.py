"""Targets that are left out: the mean is over those that count, wherever in the step they are."""

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
    """One rank, one micro-batch: there is only one mean."""
    (found,) = curves_of("single", ranks=1, micro=8, left_out=True)
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_in_pieces_is_the_step_in_one(name: str) -> None:
    more = COMPILED if "compiled" in name else ()
    for found in curves_of(STRATEGIES[name], *more, counted=True, left_out=True):
        assert found["loss"] == pytest.approx(in_one_piece()["loss"], abs=LOSS_TOLERANCE)
        assert found["norm"] == pytest.approx(in_one_piece()["norm"], rel=NORM_TOLERANCE)


def test_micro_batches_that_count_alike_would_be_another_step() -> None:
    (found,) = curves_of("single", ranks=1, left_out=True)
    assert abs(found["loss"][0] - in_one_piece()["loss"][0]) > 100 * LOSS_TOLERANCE


@pytest.mark.parametrize("strategy", ["ddp", "hsdp shard=2"])
def test_where_nothing_is_left_out_no_bit_changes(strategy: str) -> None:
    assert curves_of(strategy, counted=True) == curves_of(strategy)
