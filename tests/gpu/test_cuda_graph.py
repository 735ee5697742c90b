"""A micro-batch replayed as a CUDA graph trains like one whose kernels are launched one by one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.gpu.short_run import MICRO, batch, curve
from trainer.config.load import load
from trainer.parallel.cuda_graph import GraphEngine

SINGLE = ("parallel.strategy=single", "optimizer.clip_norm=0.3")
GRAPH = "compile.cuda_graph=true"


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2", "tiny-resnet"])
@pytest.mark.parametrize("mode", ["none", "whole"])
def test_a_replayed_run_is_the_same_to_the_bit(preset: str, mode: str) -> None:
    """With two micro-batches in a step, whose gradients are added, and running statistics of a batch norm."""
    settings = (*SINGLE, f"compile.mode={mode}", "precision=bf16")
    launched = curve(settings, preset, steps=8)
    torch.compiler.reset()
    replayed = curve((*settings, GRAPH), preset, steps=8)
    assert replayed.losses == launched.losses
    assert replayed.norms == launched.norms


def test_the_loss_scale_of_fp16_follows() -> None:
    settings = (*SINGLE, "precision=fp16")
    assert curve((*settings, GRAPH), steps=8).losses == curve(settings, steps=8).losses


def test_dropout_draws_new_numbers_in_every_step() -> None:
    """A rate of zero keeps the weights, so that only dropout can change the loss of the same batch."""
    config = load("tiny-gpt2", [*SINGLE, GRAPH, "model.dropout=0.2", "optimizer.lr=0", "batch.size=8"])
    step = make_step(config)
    assert isinstance(step.engine, GraphEngine)
    losses = [float(step.run(batch(config, 0), MICRO).loss) for _ in range(8)]
    assert len(set(losses)) == len(losses)


def test_a_resumed_run_is_the_same_to_the_bit() -> None:
    config = load("tiny-llama", [*SINGLE, GRAPH, "batch.size=8"])
    step, resumed = make_step(config), make_step(config)
    for index in range(6):
        step.run(batch(config, index), MICRO)
    for name, tensor in step.tensors().items():
        resumed.tensors()[name].data.copy_(tensor)
    resumed.load_state(step.state())
    for index in range(6, 12):
        assert step.run(batch(config, index), MICRO).loss == resumed.run(batch(config, index), MICRO).loss
