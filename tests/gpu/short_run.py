"""A short training run on the GPU in this process as a single rank; with NCCL if the strategy needs a group."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benchmarks.gpu_cases import make_step
from tests.trainer.curves import global_batch
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.parallel.engine import Batch

DEVICE = torch.device("cuda", 0)
STEPS = 20
MICRO = 4
# Two micro-batches in each step, clipped in every step.
LLAMA = ("batch.size=8", "optimizer.clip_norm=0.3")


@dataclass
class Curve:
    """Values of a run by step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: list[float] = field(default_factory=list)


def curve(arguments: tuple[str, ...], preset: str = "tiny-llama", steps: int = STEPS) -> Curve:
    config = load(preset, [*LLAMA, *arguments])
    step = make_step(config)
    result_curve = Curve()
    for index in range(steps):
        result = step.run(batch(config, index), MICRO)
        result_curve.losses.append(float(result.loss))
        result_curve.norms.append(float(result.grad_norm))
        result_curve.skipped.append(float(result.skipped))
    return result_curve


def batch(config: Config, index: int) -> Batch:
    return {name: tensor.to(DEVICE) for name, tensor in global_batch(config, index).items()}
