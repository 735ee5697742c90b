"""Gradients that ranks sum in bf16: close to fp32, but with fewer bits on the wire, under every strategy."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.test_parallel_engines import FEW, settings
from trainer.config.load import load
from trainer.config.reduction import choose_deferred_reduction
from trainer.config.schema import ParallelConfig
from trainer.state_formats import list_state_formats

STEPS = 4
STRATEGIES = [
    "ddp",
    "ddp pipeline=2",
    "fsdp",
    "fsdp zero=1",
    "hsdp shard=2",
    pytest.param("fsdp tensor=2", marks=pytest.mark.nightly),
]


@pytest.mark.nightly_cases("hsdp shard=2", "fsdp zero=1")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sums_in_bf16_are_close_to_those_in_fp32(strategy: str) -> None:
    """Each sum has a relative error of up to 1/256."""
    expected = train("single", ranks=1)[0]
    for curves in train(f"{strategy} reduce=bf16"):
        assert curves["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=2e-2)
        assert curves["norm"] != pytest.approx(expected["norm"], rel=1e-6)


def test_products_in_bf16_are_summed_in_bf16_too() -> None:
    more = ("precision=bf16",)
    curves, fp32 = (train(f"fsdp reduce={value}", more)[0] for value in ("bf16", "fp32"))
    assert curves["norm"] == pytest.approx(fp32["norm"], rel=2e-2)
    assert curves["norm"] != fp32["norm"]


def test_micro_batches_are_reduced_one_by_one_so_that_their_sum_is_fp32() -> None:
    for parallel in (ParallelConfig(strategy="fsdp", zero=1), ParallelConfig(strategy="hsdp", shard=2)):
        assert choose_deferred_reduction(parallel, 2)[0] != "nothing"
        deferred, reason = choose_deferred_reduction(replace(parallel, reduce="bf16"), 2)
        assert deferred == "nothing"
        assert "bf16" in reason


def test_formats_follow_the_settings() -> None:
    formats = list_state_formats(load("tiny-llama", ["parallel.reduce=bf16", "precision=bf16"]))
    assert (formats.weight_bytes, formats.gradient_bytes, formats.reduced_bytes, formats.product_bytes) == (4, 4, 2, 2)


@cache
def train(strategy: str, more: tuple[str, ...] = (), ranks: int = 4) -> list[Any]:
    config = config_of("tiny-llama", [*FEW, *settings(strategy), *more])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=1, steps=STEPS)
