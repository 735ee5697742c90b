"""Plans of a pipeline: what each rank computes, sends and receives in a step, and in which order.

The model is cut into stages, consecutive layers each, and the batch into micro-batches. Stage s runs on rank s modulo
the number of ranks. A schedule only orders what a rank computes. Messages follow from that (`add_messages`): stage s
sends its outputs to stage s + 1, which sends the gradient of its inputs back.

Where they are inserted decides whether ranks can wait for each other in a circle. `add_messages` imagines that all
ranks compute in step, one action at a time, and that a message is sent and received in the moment in which it is
computed. This puts all messages in one order, and each rank starts its own ones in that order. Of the messages that
are not finished, the first one always can be: both of its ranks have finished everything before it. So there is no
deadlock, even with a backend in which a send waits for its receive, as NCCL's does.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "forward", "backward", "backward_input", "backward_weight",
    "send_output", "receive_input", "send_gradient", "receive_gradient",
]  # fmt: skip
"""`backward` is both of its parts: `backward_input` computes the gradient of a stage's inputs, which the rank before it
waits for, and `backward_weight` those of its weights, which nobody waits for."""
MESSAGES: tuple[Kind, ...] = ("send_output", "receive_input", "send_gradient", "receive_gradient")
SENDS: tuple[Kind, ...] = ("send_output", "send_gradient")


class PlanError(ValueError):
    """A plan that cannot be carried out."""


@dataclass(frozen=True)
class PipelineShape:
    """The size of a pipeline's step."""

    ranks: int
    micro_batches: int
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.stages_per_rank


@dataclass(frozen=True)
class Action:
    """What a rank does with a micro-batch in one of its stages."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.micro_batch} in stage {self.stage}"


Plan = list[list[Action]]
"""The actions of each rank, in order."""


def add_messages(orders: Sequence[Sequence[Action]], shape: PipelineShape) -> Plan:
    """Return the plan for these orders of computing; raise PlanError if ranks would wait for each other forever."""
    plan: Plan = [[] for _ in orders]
    positions = [0] * shape.ranks
    computed: set[Action] = set()
    while any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        running = [
            (rank, order[position])
            for rank, (position, order) in enumerate(zip(positions, orders, strict=True))
            if position < len(order) and _is_ready(order[position], computed, shape)
        ]
        if not running:
            heads = [str(order[at]) for at, order in zip(positions, orders, strict=True) if at < len(order)]
            raise PlanError(f"ranks wait for each other: none of these can run: {'; '.join(heads)}")
        for rank, action in running:
            plan[rank].append(action)
            positions[rank] += 1
            computed.add(action)
        for rank, action in running:
            for sent, received in list_messages(action, shape):
                plan[rank].append(sent)
                plan[received.stage % shape.ranks].append(received)
    return plan


def list_messages(action: Action, shape: PipelineShape) -> list[tuple[Action, Action]]:
    """Return the message that follows from an action, if there is any: what its sender and its receiver do."""
    stage, micro_batch = action.stage, action.micro_batch
    if action.kind == "forward" and stage < shape.stages - 1:
        return [(Action("send_output", stage, micro_batch), Action("receive_input", stage + 1, micro_batch))]
    if action.kind in ("backward", "backward_input") and stage > 0:
        return [(Action("send_gradient", stage, micro_batch), Action("receive_gradient", stage - 1, micro_batch))]
    return []


def find_peer(action: Action, ranks: int) -> int:
    """Return the rank at the other end of a message."""
    return (action.stage + (1 if action.kind in ("send_output", "receive_gradient") else -1)) % ranks


def _is_ready(action: Action, computed: set[Action], shape: PipelineShape) -> bool:
    stage, micro_batch = action.stage, action.micro_batch
    if action.kind == "forward":
        return stage == 0 or Action("forward", stage - 1, micro_batch) in computed
    if action.kind == "backward_weight":
        return Action("backward_input", stage, micro_batch) in computed
    if Action("forward", stage, micro_batch) not in computed:
        return False
    later = (Action("backward", stage + 1, micro_batch), Action("backward_input", stage + 1, micro_batch))
    return stage == shape.stages - 1 or any(action in computed for action in later)
