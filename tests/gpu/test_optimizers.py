"""Every optimizer, with every format of its moments, learns on the GPU and resumes bit for bit."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import LLAMA, MICRO, batch
from tests.trainer.test_optimizer_ranks import STATES
from trainer.config.load import load
from trainer.determinism import require_deterministic_kernels

STEPS = 6


@pytest.mark.parametrize(("optimizer", "moments"), STATES)
def test_a_resumed_run_is_the_same_to_the_bit(optimizer: str, moments: str) -> None:
    require_deterministic_kernels()
    settings = ("parallel.strategy=single", f"optimizer.name={optimizer}", f"optimizer.moments={moments}")
    config = load("tiny-llama", [*LLAMA, *settings])
    step, resumed = make_step(config), make_step(config)
    losses = [float(step.run(batch(config, 0), MICRO).loss) for _ in range(STEPS)]
    assert losses[-1] < losses[0]
    saved = step.tensors()
    for name, tensor in resumed.tensors().items():
        tensor.data.copy_(saved[name])
    resumed.load_state(step.state())
    for index in range(STEPS):
        assert step.run(batch(config, index), MICRO).loss == resumed.run(batch(config, index), MICRO).loss
    resumed_tensors = resumed.tensors()
    assert [name for name, tensor in step.tensors().items() if not torch.equal(tensor, resumed_tensors[name])] == []
