"""Models compiled by inductor train like the same models run operation by operation."""

from __future__ import annotations

import pytest
from torch._dynamo.utils import counters

from tests.gpu.short_run import curve
from tests.gpu.test_strategies import HALF_TOLERANCE, compare, parallel, train_plain

CASES = [
    ("blocks", "single"),
    ("whole", "single"),
    ("blocks", "single recompute=full"),
    ("blocks", "single recompute=selective"),
    ("blocks", "fsdp"),
    ("blocks", "fsdp recompute=selective"),
]


@pytest.mark.parametrize(("mode", "strategy"), CASES)
def test_a_compiled_model_trains_like_an_eager_one(mode: str, strategy: str) -> None:
    counters.clear()
    compare(curve((*parallel(strategy), f"compile.mode={mode}")))
    # Code that is not captured would run uncompiled, and give correct results without the compiler.
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    assert counters["inductor"]


@pytest.mark.parametrize(("mode", "strategy"), [("whole", "single"), ("blocks", "fsdp")])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_compiled_model_in_half_precision_follows_full_precision(mode: str, strategy: str, precision: str) -> None:
    result = curve((*parallel(strategy), f"compile.mode={mode}", f"precision={precision}"), steps=5)
    assert result.losses == pytest.approx(train_plain("tiny-llama").losses[:5], abs=HALF_TOLERANCE)
    assert result.skipped == [0.0] * 5
