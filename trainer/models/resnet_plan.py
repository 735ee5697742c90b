"""The blocks of a residual network, as numbers: the network and its cost are both read off this list."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import ResNetConfig

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
DEEPEST_BASIC = 34


@dataclass(frozen=True)
class BlockPlan:
    inputs: int
    width: int
    outputs: int
    stride: int


def is_bottleneck(config: ResNetConfig) -> bool:
    return config.depth > DEEPEST_BASIC


def blocks(config: ResNetConfig) -> list[BlockPlan]:
    """Each stage halves the picture and doubles the channels; the first keeps both, after the stem has shrunk it."""
    widening = 4 if is_bottleneck(config) else 1
    plan: list[BlockPlan] = []
    inputs = config.width
    for stage, count in enumerate(STAGES[config.depth]):
        width = config.width * 2**stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            plan.append(BlockPlan(inputs, width, width * widening, stride))
            inputs = width * widening
    return plan
