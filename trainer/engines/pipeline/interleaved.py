"""Interleaved 1F1B: give each rank several smaller stages, so that the way through the pipeline begins sooner.

With v stages per rank, stage s is on rank s modulo ranks, and a micro-batch goes around the ranks v times. A stage
takes 1/v of the time of a rank's layers, and a rank has something to do as soon as one such stage is done:

    the bubble is (ranks - 1) x (forward + backward) / v, where both are times of all stages of a rank

The price is v times as many messages. Micro-batches run in rounds of as many as there are ranks: a round goes through
a rank's first stage, then through its second, and so on, and backward in the opposite order. With 2 ranks, 2 stages
each and 4 micro-batches (capitals are passes through the second stage of a rank, digits are micro-batches, dots are
idle):

    rank 0   f0 f1 F0 F1 f2 B0 f3 B1 F2 b0 F3 b1 .  B2 .  B3 b2 b3
    rank 1   .  f0 f1 F0 B0 F1 B1 f2 b0 f3 b1 F2 B2 F3 B3 b2 b3 .

Rank r runs 2 (ranks - 1 - r) + (v - 1) x ranks forward passes before its first backward pass: v - 1 whole rounds, and
two for each rank behind it, one on the way there and one on the way back. Then forward and backward passes alternate.

If the number of ranks does not divide that of micro-batches, rounds are larger, and the bubble too.

Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, arXiv:2104.04473.
"""

from __future__ import annotations

from trainer.engines.pipeline.actions import Action, Kind, PipelineShape
from trainer.engines.pipeline.rehearsal import Durations


def order_actions(rank: int, shape: PipelineShape) -> list[Action]:
    """Return what a rank computes, in order."""
    per_round = shape.micro_batches // max(1, shape.micro_batches // shape.ranks)
    last, total = shape.stages_per_rank - 1, shape.stages_per_rank * shape.micro_batches

    def choose(kind: Kind, number: int) -> Action:
        """Return the forward or backward pass with this number in the order of a rank."""
        place, member = divmod(number, per_round)
        number_of_round, turn = divmod(place, shape.stages_per_rank)
        turn = turn if kind == "forward" else last - turn
        return Action(kind, turn * shape.ranks + rank, number_of_round * per_round + member)

    ahead = min(total, 2 * (shape.ranks - 1 - rank) + last * per_round)
    actions = [choose("forward", n) for n in range(ahead)]
    for n in range(total):
        if n + ahead < total:
            actions.append(choose("forward", n + ahead))
        actions.append(choose("backward", n))
    return actions


def predict_bubble(shape: PipelineShape, durations: Durations) -> float:
    """Return the time for which a rank is idle in a step; durations are those of one stage."""
    return (shape.ranks - 1) * (durations["forward"] + durations["backward"])
