"""Go through a plan without computing anything: check that it can be carried out, and how long ranks are idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from trainer.engines.pipeline.actions import MESSAGES, SENDS, Action, Kind, PipelineShape, PlanError, find_peer

Durations = Mapping[Kind, float]
"""The time that each kind of action takes."""

_PARTNERS: dict[Kind, tuple[Kind, int]] = {
    "send_output": ("receive_input", 1),
    "send_gradient": ("receive_gradient", -1),
}
_BACKWARD: tuple[Kind, Kind] = ("backward", "backward_input")


def check_plan(plan: Sequence[Sequence[Action]], shape: PipelineShape) -> None:
    """Raise PlanError unless every rank can finish, with every micro-batch computed once in every stage.

    Both ranks of a message wait for each other here. A backend that receives in the background waits less.
    """
    positions = [0] * shape.ranks
    finished: set[Action] = set()
    while unfinished := [rank for rank, actions in enumerate(plan) if positions[rank] < len(actions)]:
        has_progress = False
        for rank in unfinished:
            action = plan[rank][positions[rank]]
            if action.kind in MESSAGES:
                peer = find_peer(action, shape.ranks)
                if action.kind not in SENDS or plan[peer][positions[peer] : positions[peer] + 1] != [
                    _find_receive(action)
                ]:
                    continue
                _add(finished, plan[peer][positions[peer]])
                positions[peer] += 1
            _check_needs(rank, action, finished, shape)
            _add(finished, action)
            positions[rank] += 1
            has_progress = True
        if not has_progress:
            waits = [f"rank {rank} for {plan[rank][positions[rank]]}" for rank in unfinished]
            raise PlanError(f"ranks wait for each other: {'; '.join(waits)}")
    _check_complete(finished, shape)


def measure_idle_times(plan: Sequence[Sequence[Action]], shape: PipelineShape, durations: Durations) -> list[float]:
    """Return for how long each rank is idle until the last one has finished, if messages take no time."""
    timeline = time_actions(plan, shape, lambda action: durations[action.kind])
    work = [sum(durations[action.kind] for action, _ in actions) for actions in timeline]
    end = max(start + durations[action.kind] for actions in timeline for action, start in actions)
    return [end - seconds for seconds in work]


def time_actions(
    plan: Sequence[Sequence[Action]], shape: PipelineShape, duration: Callable[[Action], float]
) -> list[list[tuple[Action, float]]]:
    """Return what each rank computes, with the time at which it starts, if messages take no time."""
    timeline: list[list[tuple[Action, float]]] = [[] for _ in plan]
    clocks, positions = [0.0] * shape.ranks, [0] * shape.ranks
    arrivals: dict[Action, float] = {}
    while unfinished := [rank for rank, actions in enumerate(plan) if positions[rank] < len(actions)]:
        for rank in unfinished:
            action = plan[rank][positions[rank]]
            if action.kind in SENDS:
                arrivals[_find_receive(action)] = clocks[rank]
            elif action.kind not in MESSAGES:
                needs = [need for need in list_needs(action, shape) if need.kind in MESSAGES]
                if any(need not in arrivals for need in needs):
                    continue
                start = max([clocks[rank], *(arrivals[need] for need in needs)])
                timeline[rank].append((action, start))
                clocks[rank] = start + duration(action)
            positions[rank] += 1
    return timeline


def list_needs(action: Action, shape: PipelineShape) -> list[Action]:
    """Return what a rank must have done itself before an action."""
    stage, number = action.stage, action.micro_batch
    match action.kind:
        case "forward":
            return [Action("receive_input", stage, number)] if stage else []
        case "backward" | "backward_input":
            received = [Action("receive_gradient", stage, number)] if stage < shape.stages - 1 else []
            return [Action("forward", stage, number), *received]
        case "backward_weight":
            return [Action("backward_input", stage, number)]
        case "send_output":
            return [Action("forward", stage, number)]
    return []


def _find_receive(send: Action) -> Action:
    kind, step = _PARTNERS[send.kind]
    return Action(kind, send.stage + step, send.micro_batch)


def _add(finished: set[Action], action: Action) -> None:
    if action in finished:
        raise PlanError(f"the plan has {action} twice")
    finished.add(action)


def _check_needs(rank: int, action: Action, finished: set[Action], shape: PipelineShape) -> None:
    if action.stage % shape.ranks != rank:
        raise PlanError(f"rank {rank} has {action}, which belongs to rank {action.stage % shape.ranks}")
    for need in list_needs(action, shape):
        if need not in finished:
            raise PlanError(f"rank {rank} has {action} before {need}")
    whole, part = (Action(kind, action.stage, action.micro_batch) for kind in _BACKWARD)
    if action.kind == "send_gradient" and not finished.intersection((whole, part)):
        raise PlanError(f"rank {rank} has {action} before {whole}")


def _check_complete(finished: set[Action], shape: PipelineShape) -> None:
    computed: dict[tuple[int, int], set[Kind]] = {}
    for action in finished:
        if action.kind not in MESSAGES:
            computed.setdefault((action.stage, action.micro_batch), set()).add(action.kind)
    for stage, number in product(range(shape.stages), range(shape.micro_batches)):
        kinds = computed.get((stage, number), set())
        if kinds not in ({"forward", "backward"}, {"forward", "backward_input", "backward_weight"}):
            names = ", ".join(sorted(kinds)) or "nothing"
            raise PlanError(f"micro-batch {number} has {names} in stage {stage}, not a forward and a backward pass")
