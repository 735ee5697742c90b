"""Plans of pipelines can be carried out, and ranks are idle for as long as the formula of each schedule says."""

from __future__ import annotations

import re
from itertools import product

import pytest

from trainer.engines.pipeline import gpipe, interleaved, one_forward_one_backward, zero_bubble
from trainer.engines.pipeline.actions import MESSAGES, Action, Kind, PipelineShape, Plan, PlanError, add_messages
from trainer.engines.pipeline.plan import SCHEDULES, make_plan
from trainer.engines.pipeline.rehearsal import Durations, check_plan, measure_idle_times, time_actions

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 16, 31, 32)
# Backward passes take longer than forward passes; gradients of weights and of inputs take about as long.
TIMES: list[dict[Kind, float]] = [
    {"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1},
    {"forward": 1.0, "backward": 2.1, "backward_input": 1.2, "backward_weight": 0.9},
]
LETTERS: dict[Kind, str] = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}


@pytest.mark.parametrize(("schedule", "ranks"), [*product(SCHEDULES, range(2, 9))])
def test_a_plan_can_be_carried_out_and_is_idle_as_its_formula_says(schedule: str, ranks: int) -> None:
    for shape in list_shapes(schedule, ranks):
        plan = make_plan(schedule, shape)
        check_plan(plan, shape)
        for durations in TIMES:
            idle = max(measure_idle_times(plan, shape, durations))
            assert idle == pytest.approx(SCHEDULES[schedule].predict_bubble(shape, durations)), shape


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_add_up_micro_batches_in_order(schedule: str) -> None:
    """The order of a sum decides its rounding, so all schedules have the same bits."""
    for shape in list_shapes(schedule, 4):
        for actions, stage in product(make_plan(schedule, shape), range(shape.stages)):
            added = [a.micro_batch for a in actions if a.stage == stage and a.kind in ("backward", "backward_weight")]
            assert added in ([], list(range(shape.micro_batches)))


def test_uneven_rounds_can_be_carried_out() -> None:
    """6 micro-batches on 4 ranks are one round of 6."""
    shape = PipelineShape(4, 6, 2)
    check_plan(make_plan("interleaved", shape), shape)


def list_shapes(schedule: str, ranks: int) -> list[PipelineShape]:
    """Return steps that the schedule can run: fewer micro-batches than ranks, and uneven rounds, are refused before."""
    if schedule == "interleaved":
        return [PipelineShape(ranks, count, stages) for count in COUNTS for stages in (2, 3) if count % ranks == 0]
    return [PipelineShape(ranks, count) for count in COUNTS if count >= ranks or schedule == "gpipe"]


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        ("gpipe", [16, 16, 16, 16]),
        ("1f1b", [4, 3, 2, 1]),
        # Of two stages each: as many activations as 5.5, 4.5, 3.5 and 2.5 micro-batches of a whole rank.
        ("interleaved", [11, 9, 7, 5]),
        ("zero_bubble", [4, 4, 4, 4]),
    ],
)
def test_a_rank_stores_the_activations_of_so_many_micro_batches(schedule: str, most: list[int]) -> None:
    shape = PipelineShape(4, 16, 2 if schedule == "interleaved" else 1)
    changes = {"forward": 1, "backward": -1, "backward_weight": -1}
    stored = []
    for actions in make_plan(schedule, shape):
        now = peak = 0
        for action in actions:
            now += changes.get(action.kind, 0)
            peak = max(peak, now)
        stored.append(peak)
    assert stored == most


@pytest.mark.parametrize(
    ("module", "schedule", "shape"),
    [
        (gpipe, "gpipe", PipelineShape(3, 4)),
        (one_forward_one_backward, "1f1b", PipelineShape(3, 4)),
        (interleaved, "interleaved", PipelineShape(2, 4, 2)),
        (zero_bubble, "zero_bubble", PipelineShape(3, 4)),
    ],
)
def test_the_picture_in_the_docstring_is_that_of_the_plan(module: object, schedule: str, shape: PipelineShape) -> None:
    durations = dict.fromkeys(LETTERS, 1) | ({"backward": 2} if schedule == "zero_bubble" else {})
    pictured = re.findall(r"^    rank \d   (.*)$", module.__doc__ or "", re.MULTILINE)
    assert pictured == draw(make_plan(schedule, shape), shape, durations)


def draw(plan: Plan, shape: PipelineShape, durations: Durations) -> list[str]:
    """Return a line for each rank, with a cell for each unit of time."""
    timeline = time_actions(plan, shape, lambda action: durations[action.kind])
    end = max(int(start + durations[action.kind]) for actions in timeline for action, start in actions)
    lines = []
    for actions in timeline:
        cells = ["."] * end
        for action, start in actions:
            letter = LETTERS[action.kind]
            label = f"{letter.lower() if action.stage < shape.stages - shape.ranks else letter}{action.micro_batch}"
            for cell in range(int(start), int(start + durations[action.kind])):
                cells[cell] = label
        lines.append(" ".join(f"{cell:<2}" for cell in cells).rstrip())
    return lines


TINY = PipelineShape(2, 2)


def spoil(change: str) -> Plan:
    """Return the plan of 1F1B for 2 ranks and 2 micro-batches, with a mistake."""
    first, last = ([*actions] for actions in make_plan("1f1b", TINY))
    match change:
        case "rank 1 receives in another order":
            receives = [index for index, action in enumerate(last) if action.kind == "receive_input"]
            last[receives[0]], last[receives[1]] = last[receives[1]], last[receives[0]]
        case "a message is not sent":
            first = [action for action in first if action != Action("send_output", 0, 1)]
        case "a micro-batch runs twice":
            first.append(Action("backward", 0, 1))
        case "a micro-batch has no backward pass":
            first = [action for action in first if action != Action("backward", 0, 1)]
        case "a pass runs before its input":
            last.insert(0, last.pop(next(index for index, a in enumerate(last) if a.kind == "forward")))
        case "a gradient is sent before it is computed":
            index = next(index for index, action in enumerate(last) if action.kind == "send_gradient")
            last[index - 1], last[index] = last[index], last[index - 1]
        case "a rank runs the stage of another":
            first[0] = Action("forward", 1, 0)
    return [first, last]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rank 1 receives in another order", "ranks wait for each other: rank 0 for send_output of micro-batch 0 in"),
        ("a message is not sent", "ranks wait for each other: "),
        ("a micro-batch runs twice", "the plan has backward of micro-batch 1 in stage 0 twice"),
        ("a micro-batch has no backward pass", "micro-batch 1 has forward in stage 0, not a forward and a backward"),
        ("a pass runs before its input", "rank 1 has forward of micro-batch 0 in stage 1 before receive_input of"),
        ("a gradient is sent before it is computed", "rank 1 has send_gradient of micro-batch 0 in stage 1 before bac"),
        ("a rank runs the stage of another", "rank 0 has forward of micro-batch 0 in stage 1, which belongs to rank 1"),
    ],
)
def test_a_plan_with_a_mistake_is_an_error_that_names_it(change: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"^{message}"):
        check_plan(spoil(change), TINY)


def test_an_order_in_which_ranks_wait_for_each_other_is_an_error() -> None:
    orders = [
        [Action("backward", 0, 0), Action("forward", 0, 0)],
        [Action("forward", 1, 0), Action("backward", 1, 0)],
    ]
    message = "none of these can run: backward of micro-batch 0 in stage 0; forward of micro-batch 0 in stage 1"
    with pytest.raises(PlanError, match=message):
        add_messages(orders, PipelineShape(2, 1))


def test_messages_of_one_moment_follow_each_other_and_start_together() -> None:
    """Rank 1 of 3 has both neighbours: between two passes, it sends and receives at once."""
    kinds = ["message" if action.kind in MESSAGES else "pass" for action in make_plan("1f1b", PipelineShape(3, 8))[1]]
    text = "".join(kind[0] for kind in kinds)
    assert "pmmp" in text
    assert text.count("m") == 4 * 8
