"""Decisions of the soak: when what is killed, what became of each task, lost steps, and the bars."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.soak.__main__ import parse_arguments
from benchmarks.soak.bars import Checkpoints, Leftovers, Measured, judge
from benchmarks.soak.ledger import (
    STATE_SAVED_S,
    Accepted,
    Attempt,
    Hit,
    Verdict,
    judge_tasks,
    list_unknown,
    parse_ledger,
    write_job_script,
)
from benchmarks.soak.plan import PARTS, choose_node, plan_kills, plan_submissions
from benchmarks.soak.steps import Training, predict_goodput, predict_time_share, read_training
from slurm.control.accounting import JobRecord, parse_records

TASK = ("soak-0001", 0)
DONE = Attempt(105.0, "gpu-1", 110.0)
KILLED = Attempt(105.0, "gpu-1", None)
AGAIN = Attempt(130.0, "gpu-2", 135.0)
COMPLETED = JobRecord(*TASK, "COMPLETED")
TRAINING = Training(useful=980, lost=20, attempts=6, step_s=0.5, write_s=0.5, wall_s=900.0, is_whole=True)


def test_the_same_seed_kills_the_same_parts_at_the_same_times() -> None:
    assert plan_kills(1, 1800, 60) == plan_kills(1, 1800, 60)
    assert plan_kills(1, 1800, 60) != plan_kills(2, 1800, 60)
    assert plan_submissions(1, 600) == plan_submissions(1, 600)


def test_every_part_is_killed_before_one_is_killed_again() -> None:
    parts = [kill.part for kill in plan_kills(3, 100_000, 60)]
    for begin in range(0, len(parts) - len(PARTS), len(PARTS)):
        assert set(parts[begin : begin + len(PARTS)]) == set(PARTS)


def test_kills_have_the_requested_mean_time_between_them_and_end_in_time() -> None:
    kills = plan_kills(4, 600_000, 60)
    assert 600_000 / len(kills) == pytest.approx(60, rel=0.05)
    assert [kill.at_s for kill in kills] == sorted(kill.at_s for kill in kills)
    assert kills[-1].at_s < 600_000


def test_submissions_are_jobs_and_arrays_with_names_of_their_own() -> None:
    submissions = plan_submissions(1, 1800)
    assert len({submission.name for submission in submissions}) == len(submissions)
    assert {submission.tasks for submission in submissions} == {1, 3}
    assert submissions[-1].at_s < 1800


@pytest.mark.parametrize(("choice", "node"), [(0.0, "a"), (0.34, "b"), (0.99, "c"), (1.0, "c")])
def test_a_choice_selects_a_node(choice: float, node: str) -> None:
    assert choose_node(["a", "b", "c"], choice) == node


def test_the_ledger_has_the_attempts_of_each_task() -> None:
    lines = [
        "soak-0001.0:begin 105.0 gpu-1",
        "soak-0001.0:end 105.0 110.0",
        "soak-0002.3:begin 105.0 gpu-1",
        "soak-0002.3:begin 130.0 gpu-2",
        "soak-0002.3:end 130.0 135.0",
        "soak-0003.0:begin 10",
        "soak-0003.0:end 105.0",
    ]
    assert parse_ledger("\n".join(lines)) == {TASK: [DONE], ("soak-0002", 3): [KILLED, AGAIN]}


def test_the_job_script_writes_what_the_ledger_reads() -> None:
    script = write_job_script("/shared/ledger", 2.5)
    assert "file=/shared/ledger/$SLURM_JOB_NAME.${SLURM_ARRAY_TASK_ID:-0}" in script
    assert "sleep 2.5" in script


@pytest.mark.parametrize(
    ("attempts", "records", "hits", "verdict"),
    [
        ([DONE], [COMPLETED], [], "done"),
        ([KILLED, AGAIN], [JobRecord(*TASK, "NODE_FAIL"), COMPLETED], [], "done"),
        # Slurm forgets what it has not saved, and only that.
        ([], [], [Hit(100.0 + STATE_SAVED_S - 1, "slurmctld", "controller")], "forgotten"),
        ([], [], [Hit(100.0 + STATE_SAVED_S + 1, "slurmctld", "controller")], "lost"),
        # It may die between sbatch's answer and the moment at which the soak reads it.
        ([], [], [Hit(99.0, "slurmctld", "controller")], "forgotten"),
        ([], [], [Hit(97.0, "slurmctld", "controller")], "lost"),
        ([], [], [Hit(101.0, "slurmd", "gpu-1")], "lost"),
        ([KILLED], [COMPLETED], [Hit(101.0, "slurmctld", "controller")], "lost"),
        ([DONE], [JobRecord(*TASK, "FAILED")], [], "lost"),
        ([DONE], [JobRecord("soak-0001", 1, "COMPLETED")], [], "lost"),
        # An end that was lost with slurmctld's memory, or with the node, is repeated; nothing else may be.
        ([DONE, AGAIN], [COMPLETED], [Hit(112.0, "controller", "controller")], "repeated"),
        ([DONE, AGAIN], [COMPLETED], [Hit(112.0, "node", "gpu-1")], "repeated"),
        ([DONE, AGAIN], [COMPLETED], [Hit(112.0, "node", "gpu-3")], "run twice"),
        ([DONE, AGAIN], [COMPLETED], [Hit(125.0, "controller", "controller")], "run twice"),
        ([DONE, AGAIN], [COMPLETED], [], "run twice"),
        # At the same time, whatever was killed.
        (
            [Attempt(105.0, "gpu-1", 133.0), AGAIN],
            [COMPLETED],
            [Hit(133.0, "node", "gpu-1"), Hit(133.0, "slurmctld", "controller")],
            "run twice",
        ),
    ],
)
def test_what_became_of_a_task(
    attempts: list[Attempt], records: list[JobRecord], hits: list[Hit], verdict: Verdict
) -> None:
    assert judge_tasks([Accepted(TASK, 98.0, 100.0)], {TASK: attempts}, records, hits) == {TASK: verdict}


def test_a_refused_submission_may_have_arrived_but_nothing_else_may_run() -> None:
    attempts = {TASK: [DONE], ("soak-0002", 0): [DONE], ("other", 0): [DONE]}
    assert list_unknown([Accepted(TASK, 98.0, 100.0)], attempts, [("soak-0002", 0)]) == [("other", 0)]


def test_records_of_accounting_are_parsed() -> None:
    text = "7|train|NODE_FAIL\n7|train|COMPLETED\n8_2|a|b|CANCELLED by 0\n8_[3-4]|a|PENDING\n\n"
    assert parse_records(text) == [
        JobRecord("train", 0, "NODE_FAIL"),
        JobRecord("train", 0, "COMPLETED"),
        JobRecord("a|b", 2, "CANCELLED"),
    ]


def make_lines(last: int) -> list[dict[str, Any]]:
    return [{"step": step, "step_s": 0.5, "time": 100.0 + step} for step in range(1, last + 1)]


def test_lost_steps_are_those_that_a_later_attempt_computes_again() -> None:
    events = [
        {"event": "first_step", "time": 101.0, "step": 1},
        {"event": "save_published", "time": 111.0, "step": 10, "seconds": 2.0},
        {"event": "first_step", "time": 140.0, "step": 11},
        {"event": "first_step", "time": 160.0, "step": 11},
    ]
    # The run was killed after step 17, and again after step 12; it ended at step 30.
    samples = [(105.0, 5), (118.0, 17), (130.0, 17), (139.0, 10), (141.0, 12), (159.0, 12), (162.0, 13), (179.0, 30)]
    training = read_training(events, make_lines(30), samples)
    assert (training.useful, training.lost, training.attempts) == (30, 7 + 2, 3)
    assert (training.step_s, training.write_s, training.wall_s, training.is_whole) == (0.5, 2.0, 29.0, True)


def test_a_run_that_resumes_exactly_where_it_was_loses_nothing() -> None:
    events = [{"event": "first_step", "time": 101.0, "step": 1}, {"event": "first_step", "time": 140.0, "step": 18}]
    assert read_training(events, make_lines(20), [(118.0, 17), (141.0, 18)]).lost == 0


@pytest.mark.parametrize("steps", [[1, 2, 2, 3], [1, 3], []])
def test_a_step_that_is_missing_or_recorded_twice_is_noticed(steps: list[int]) -> None:
    lines = [{"step": step, "step_s": 0.5, "time": 100.0} for step in steps]
    assert not read_training([], lines, []).is_whole


def test_the_model_expects_half_an_interval_and_an_unfinished_save_to_be_lost() -> None:
    # 1000 steps of 0.5 s, 5 interruptions: one in 100 s. Each costs 2.5 s of steps and the write of 0.5 s.
    assert predict_goodput(TRAINING, 10) == pytest.approx(1 / (1 + 3 / 100), abs=0.001)
    assert predict_goodput(replace(TRAINING, attempts=1), 10) == 1.0
    assert predict_time_share(TRAINING, 10, 30) < predict_goodput(TRAINING, 10)


def make_measured(**changes: Any) -> Measured:
    measured = Measured(
        hits=[Hit(100.0, "rank", "gpu-1", hit_training=True)],
        missed=0,
        verdicts={TASK: "done"},
        refused=0,
        unknown=[],
        training=TRAINING,
        interval_steps=10,
        slurmd_timeout_s=30.0,
        training_end="stopped",
        checkpoints=Checkpoints(3),
        leftovers=Leftovers(),
    )
    return replace(measured, **changes)


def list_failed(measured: Measured) -> list[str]:
    return [figure.name for figure in judge(measured) if figure.verdict == "FAIL"]


def test_a_soak_without_damage_passes_with_every_bar() -> None:
    assert list_failed(make_measured()) == []
    assert Counter(figure.verdict for figure in judge(make_measured())) == {"pass": 12, "": 6}


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"verdicts": {TASK: "lost"}}, "tasks lost"),
        ({"verdicts": {TASK: "run twice"}}, "tasks run twice"),
        ({"unknown": [("other", 0)]}, "tasks of nobody"),
        ({"training": replace(TRAINING, lost=120)}, "training: below the failure model"),
        ({"training": replace(TRAINING, is_whole=False)}, "training: steps missing or recorded twice"),
        ({"training_end": "failed"}, "training: not stopped as requested"),
        ({"training_end": ""}, "training: not stopped as requested"),
        ({"checkpoints": Checkpoints(3, ["step-00000010: shard is missing"])}, "checkpoints that cannot be read"),
        ({"checkpoints": Checkpoints(0)}, "checkpoints missing"),
        ({"leftovers": Leftovers(core_dumps=["gpu-1: /var/core"])}, "core dumps and crashes"),
        ({"leftovers": Leftovers(processes=["gpu-1: sleep 600"])}, "processes left"),
        ({"leftovers": Leftovers(queued=["RUNNING|now"])}, "jobs that do not end"),
        ({"leftovers": Leftovers(out_of_service=["gpu-1 DOWN"])}, "nodes out of service"),
    ],
)
def test_each_bar_can_fail(changes: dict[str, Any], bar: str) -> None:
    assert list_failed(make_measured(**changes)) == [bar]


def test_what_slurm_forgets_or_repeats_by_design_is_counted_and_not_judged() -> None:
    figures = {f.name: f for f in judge(make_measured(verdicts={TASK: "forgotten", ("soak-0002", 1): "repeated"}))}
    assert figures["tasks that slurmctld forgot within 10 s"].value == 1
    assert figures["tasks repeated after a lost end"].reference == "soak-0002.1"
    assert [name for name, figure in figures.items() if figure.verdict == "FAIL"] == []


@pytest.mark.parametrize("option", ["--minutes", "--mtbf"])
@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon"])
def test_times_must_be_above_0(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([f"{option}={value}"])
    assert f"{value!r} is not a number above 0" in capsys.readouterr().err
