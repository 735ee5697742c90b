"""1F1B: run a backward pass as soon as there is one, so that fewer activations wait for theirs.

With 3 ranks and 4 micro-batches (F forward, B backward, digits are micro-batches, dots are idle):

    rank 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
    rank 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
    rank 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

Rank r starts with ranks - 1 - r forward passes, which is how many it can run until the first micro-batch comes back.
Then forward and backward passes alternate, and in the end the backward passes of the first ones are left. A rank
stores the activations of at most ranks - r micro-batches, however many there are. The bubble is that of GPipe, (ranks
- 1) x (forward + backward): the way to the last rank and back is as long.

Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, arXiv:2006.09503 (PipeDream-Flush).
"""

from __future__ import annotations

from trainer.engines.pipeline.actions import Action, PipelineShape
from trainer.engines.pipeline.rehearsal import Durations


def order_actions(rank: int, shape: PipelineShape) -> list[Action]:
    """Return what a rank computes, in order."""
    count = shape.micro_batches
    ahead = min(count, shape.ranks - 1 - rank)
    actions = [Action("forward", rank, n) for n in range(ahead)]
    for n in range(count):
        if n + ahead < count:
            actions.append(Action("forward", rank, n + ahead))
        actions.append(Action("backward", rank, n))
    return actions


def predict_bubble(shape: PipelineShape, durations: Durations) -> float:
    """Return the time for which a rank is idle in a step."""
    return (shape.ranks - 1) * (durations["forward"] + durations["backward"])
