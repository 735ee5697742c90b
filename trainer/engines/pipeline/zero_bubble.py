"""Zero bubble (ZB-H1): compute the gradients of weights when there is nothing else to do.

A backward pass has two parts. The rank before waits for the gradient of a stage's inputs (I). Nobody waits for the
gradients of its weights (W), which can be computed at any time before the end of the step. So W is what a rank does
while it would be idle in 1F1B. With 3 ranks and 4 micro-batches (B is both parts, digits are micro-batches, dots are
idle):

    rank 0   F0 F1 F2 .  .  B0 B0 F3 B1 B1 B2 B2 B3 B3
    rank 1   .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2   .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

The order of forward and backward passes is that of 1F1B, and rank r runs its W's r micro-batches late. Later ranks
defer more of them, so the gradients of inputs come sooner to earlier ranks, and all ranks end together. The bubble
shrinks from (ranks - 1) x (F + I + W) to (ranks - 1) x (F + I - W): to a third, if all three take equally long. A rank
stores the activations of as many micro-batches as there are ranks, the most that any rank stores in 1F1B.

The first stage has no rank before it, and defers nothing: its backward pass is not divided.

The name is that of the family of schedules. The one without any bubble, ZB-H2, stores twice as many activations and
lets ranks begin the next step at different times, which the norm of all gradients in each step does not allow.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241.
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
        if rank == 0:
            actions.append(Action("backward", rank, n))
            continue
        actions.append(Action("backward_input", rank, n))
        if n >= rank:
            actions.append(Action("backward_weight", rank, n - rank))
    if rank > 0:
        actions += [Action("backward_weight", rank, n) for n in range(max(0, count - rank), count)]
    return actions


def predict_bubble(shape: PipelineShape, durations: Durations) -> float:
    """Return the time for which the rank that ends last is idle in a step."""
    saved = durations["backward_weight"]
    return (shape.ranks - 1) * (durations["forward"] + durations["backward_input"] - saved)
