"""The plan of a step for each schedule by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from trainer.engines.pipeline import gpipe, interleaved, one_forward_one_backward, zero_bubble
from trainer.engines.pipeline.actions import Action, PipelineShape, Plan, add_messages
from trainer.engines.pipeline.rehearsal import Durations, check_plan


@dataclass(frozen=True)
class Schedule:
    """A way of ordering the micro-batches of a rank, and its formula of the bubble."""

    order: Callable[[int, PipelineShape], list[Action]]
    predict_bubble: Callable[[PipelineShape, Durations], float]


SCHEDULES = {
    "gpipe": Schedule(gpipe.order_actions, gpipe.predict_bubble),
    "1f1b": Schedule(one_forward_one_backward.order_actions, one_forward_one_backward.predict_bubble),
    "interleaved": Schedule(interleaved.order_actions, interleaved.predict_bubble),
    "zero_bubble": Schedule(zero_bubble.order_actions, zero_bubble.predict_bubble),
}


@cache
def make_plan(schedule: str, shape: PipelineShape) -> Plan:
    """Return the plan of a step; a schedule that cannot be carried out is an error instead of a hang."""
    plan = add_messages([SCHEDULES[schedule].order(rank, shape) for rank in range(shape.ranks)], shape)
    check_plan(plan, shape)
    return plan
