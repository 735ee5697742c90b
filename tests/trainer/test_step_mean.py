"""The loss of a step is the mean over all targets that are not ignored, across ranks and micro-batches."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import LOSS_TOLERANCE, NORM_TOLERANCE, settings
from tests.trainer.test_parallel_engines import FEW

STEPS = 2
STRATEGIES = {
    "ddp": "ddp",
    "ddp, compiled whole": "ddp",
    "hsdp": "hsdp shard=2",
    "pipeline with fsdp": "fsdp pipeline=2",
    "tensor with ddp": "ddp tensor=2",
}
COMPILED = ("compile.mode=whole", "compile.backend=eager")


def train_curves(strategy: str, *more: str, ranks: int = 4, micro: int = 1, **options: Any) -> list[Any]:
    config = config_of("tiny-llama", [*FEW, *settings(strategy), *more])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=micro, steps=STEPS, **options)


@cache
def train_unsplit() -> dict[str, list[float]]:
    """Return the curves of a single rank with a single micro-batch, where the mean is unambiguous."""
    (curves,) = train_curves("single", ranks=1, micro=8, ignore_some=True)
    return curves


@pytest.mark.nightly_cases("tensor with ddp")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if "compiled" in name else ()) for name in STRATEGIES]
)
def test_a_split_step_equals_an_unsplit_step(name: str) -> None:
    # Each rank compiles for itself, so two are enough.
    more, ranks = (COMPILED, 2) if "compiled" in name else ((), 4)
    for curves in train_curves(STRATEGIES[name], *more, ranks=ranks, count_targets=True, ignore_some=True):
        assert curves["loss"] == pytest.approx(train_unsplit()["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(train_unsplit()["norm"], rel=NORM_TOLERANCE)


def test_equal_weights_of_micro_batches_give_another_loss() -> None:
    (curves,) = train_curves("single", ranks=1, ignore_some=True)
    assert abs(curves["loss"][0] - train_unsplit()["loss"][0]) > 100 * LOSS_TOLERANCE


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("hsdp shard=2", marks=pytest.mark.nightly)])
def test_without_ignored_targets_no_bit_changes(strategy: str) -> None:
    assert train_curves(strategy, count_targets=True) == train_curves(strategy)
