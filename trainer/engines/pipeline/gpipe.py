"""GPipe: run the forward passes of all micro-batches, then all backward passes.

With 3 ranks and 4 micro-batches (F forward, B backward, digits are micro-batches, dots are idle):

    rank 0   F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
    rank 1   .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
    rank 2   .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .

The last rank has its first micro-batch after ranks - 1 forward passes, and the first rank has its last gradient ranks
- 1 backward passes after the last rank. So every rank is idle for (ranks - 1) x (forward + backward), the bubble.
Compared with the work of a step, that is (ranks - 1) / micro-batches: more micro-batches make it smaller, but a rank
stores the activations of all of them.

Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, arXiv:1811.06965.
"""

from __future__ import annotations

from trainer.engines.pipeline.actions import Action, PipelineShape
from trainer.engines.pipeline.rehearsal import Durations


def order_actions(rank: int, shape: PipelineShape) -> list[Action]:
    """Return what a rank computes, in order."""
    numbers = range(shape.micro_batches)
    return [Action("forward", rank, n) for n in numbers] + [Action("backward", rank, n) for n in numbers]


def predict_bubble(shape: PipelineShape, durations: Durations) -> float:
    """Return the time for which a rank is idle in a step."""
    return (shape.ranks - 1) * (durations["forward"] + durations["backward"])
