"""Models compiled by inductor train like the same models run operation by operation."""

from __future__ import annotations

import pytest
from torch._dynamo.utils import counters

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import LLAMA, MICRO, batch, curve
from tests.gpu.test_strategies import HALF_TOLERANCE, LOSS_TOLERANCE, SINGLE, compare, parallel, train_plain
from trainer.config.load import load

CASES = [
    ("blocks", "single"),
    ("whole", "single"),
    ("blocks", "single recompute=full"),
    ("blocks", "single recompute=selective"),
    ("blocks", "fsdp"),
    ("blocks", "fsdp recompute=selective"),
]
COUNTED_STEPS = 6
# At the rate of its preset, a small ResNet amplifies rounding.
LOW_RATE = "optimizer.lr=0.001"


@pytest.mark.parametrize(("mode", "strategy"), CASES)
def test_a_compiled_model_trains_like_an_eager_one(mode: str, strategy: str) -> None:
    counters.clear()
    compare(curve((*parallel(strategy), f"compile.mode={mode}")))
    # Code that is not captured would run uncompiled, and give correct results without the compiler.
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    assert counters["inductor"]


@pytest.mark.parametrize("mode", ["blocks", "whole"])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2", "tiny-resnet"])
def test_nothing_is_compiled_after_the_second_step(preset: str, mode: str) -> None:
    counters.clear()
    losses, _ = train_and_count(preset, "none")
    compiled_losses, graphs = train_and_count(preset, mode)
    assert compiled_losses == pytest.approx(losses, abs=LOSS_TOLERANCE)
    assert 0 < graphs[0] <= graphs[1]
    assert graphs[1:] == [graphs[1]] * (COUNTED_STEPS - 1)
    assert not counters["graph_break"]


@pytest.mark.parametrize(("mode", "strategy"), [("whole", "single"), ("blocks", "fsdp")])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_compiled_model_in_half_precision_follows_full_precision(mode: str, strategy: str, precision: str) -> None:
    result = curve((*parallel(strategy), f"compile.mode={mode}", f"precision={precision}"), steps=5)
    assert result.losses == pytest.approx(train_plain("tiny-llama").losses[:5], abs=HALF_TOLERANCE)
    assert result.skipped == [0.0] * 5


def train_and_count(preset: str, mode: str, *settings: str) -> tuple[list[float], list[int]]:
    """Return the losses of some steps, and how many graphs were compiled up to each of them."""
    config = load(preset, [*LLAMA, *SINGLE, LOW_RATE, f"compile.mode={mode}", *settings])
    step = make_step(config)
    losses, graphs = [], []
    for index in range(COUNTED_STEPS):
        losses.append(float(step.run(batch(config, index), MICRO).loss))
        graphs.append(counters["stats"]["unique_graphs"])
    return losses, graphs
