"""fp16 with a loss scale that is too large: updates are skipped until it fits, then training continues."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import LLAMA, MICRO, batch
from tests.gpu.test_strategies import parallel
from trainer.config.load import load
from trainer.parallel.gradients import to_local

# Gradients are far beyond 65504, the largest number of fp16.
TOO_LARGE = 2.0**36
STEPS = 40


@pytest.mark.parametrize(
    "strategy", ["single", "fsdp", "fsdp zero=2", "fsdp offload=true", "fsdp offload=true engine=muster"]
)
def test_an_overflow_is_skipped_and_halves_the_scale(strategy: str) -> None:
    config = load("tiny-llama", [*LLAMA, *parallel(strategy), "precision=fp16"])
    step = make_step(config)
    assert step.scale is not None
    step.scale.scale.fill_(TOO_LARGE)
    values = [value for _, value in step.engine.named_parameters()]
    scales, skipped, losses = [TOO_LARGE], [], []
    for index in range(STEPS):
        before = [to_local(value).detach().clone() for value in values]
        result = step.run(batch(config, index), MICRO)
        scales.append(float(step.scale.scale))
        skipped.append(bool(result.skipped))
        losses.append(float(result.loss))
        same = all(torch.equal(to_local(value), old) for value, old in zip(values, before, strict=True))
        assert same == skipped[-1], f"step {index}"
    assert skipped[0]
    assert [after / before for before, after in pairwise(scales)] == [0.5 if bad else 1.0 for bad in skipped]
    # Near the limit the scale may overflow once more; below it nothing overflows, and the model learns.
    assert not any(skipped[-10:])
    assert losses[-1] < losses[0] - 0.1
    assert float(step.optimizer.tensors()["updates"]) == skipped.count(False)
