"""Silent corruption: flipped bits are found by replays, blamed on the right rank and host, and undone."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import (
    SMALL_LLAMA,
    Launched,
    assert_finished,
    checkpoint_steps,
    digests,
    events,
    forked,
    losses,
    outcome,
)
from trainer.life.cause import Cause
from trainer.life.outcome import Code
from trainer.report.findings import list_findings
from trainer.report.run_folder import open_run
from trainer.report.summary import summarise

STEPS, EVERY = 14, 4
SETTINGS = [*SMALL_LLAMA, f"steps={STEPS}", "batch.size=12", "batch.micro=2", f"health.replay_every={EVERY}"]
SETTINGS += ["checkpoint.every=3", "checkpoint.asynchronous=false"]
ENGINES = {
    "ddp": ("parallel.strategy=ddp",),
    "muster ddp": ("parallel.strategy=ddp", "parallel.engine=muster"),
    "fsdp": ("parallel.strategy=fsdp",),
    "muster fsdp": ("parallel.strategy=fsdp", "parallel.engine=muster"),
}


def run_ranks(tmp_path: Path, name: str, ranks: int, *settings: str, flips: Any = (), **variables: str) -> Launched:
    """Train until the end, whatever it is; each rank is a host of its own."""
    arguments = [*SETTINGS, f"run.folder={tmp_path / name}", *settings]
    with forked(
        ranks, arguments, tmp_path, program="tests.trainer.flip_rank", FLIPS=json.dumps(list(flips)), **variables
    ) as run:
        run.wait()
    return run


def run_in_job(tmp_path: Path, ranks: int, *settings: str, flips: Any) -> Launched:
    """Train as under the job script, which requeues the run without the host that is blamed."""
    job = str(tmp_path / "run" / "outcome.json")
    run = run_ranks(tmp_path, "run", ranks, *settings, flips=flips, MUSTER_OUTCOME_FILE=job)
    assert run.wait() == 0, run.output
    return run


# By day, one engine with each strategy; at night, all pairs.
NIGHTLY = pytest.mark.nightly


@pytest.mark.nightly_cases("ddp")
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=NIGHTLY if name in ("fsdp", "muster ddp") else ()) for name in ENGINES]
)
def test_a_run_with_replays_has_the_same_bits(tmp_path: Path, engine: str) -> None:
    for name, every in (("with", EVERY), ("without", 0)):
        assert_finished(run_ranks(tmp_path, name, 2, f"health.replay_every={every}", *ENGINES[engine]))
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    assert digests(tmp_path / "with", STEPS) == digests(tmp_path / "without", STEPS)
    assert [event["step"] for event in events(tmp_path / "with", "replayed")] == [2, 4, 8, 12]


@pytest.mark.nightly_cases("muster fsdp-2", "ddp-2")
@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        ("ddp", 2),
        ("muster fsdp", 2),
        ("ddp", 3),
        *(pytest.param(*case, marks=NIGHTLY) for case in (("muster ddp", 2), ("fsdp", 2), ("fsdp", 3))),
    ],
)
def test_a_rank_whose_gradients_are_wrong_is_named(tmp_path: Path, engine: str, ranks: int) -> None:
    """In a job, the run ends, and what it resumes from is the newest checkpoint that was confirmed."""
    run_in_job(tmp_path, ranks, *ENGINES[engine], flips=[{"what": "gradients", "rank": 1, "step": 6}])
    ended = assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=1, host="node-1")
    assert (ended["outcome"], ended["step"]) == ("requeue", 7)
    (event,) = events(tmp_path / "run", "corruption")
    assert (event["ranks"], event["hosts"], event["what"], event["decided"]) == ([1], ["node-1"], "gradients", True)
    assert checkpoint_steps(tmp_path / "run") == [3]
    assert (tmp_path / "run" / "checkpoints" / "step-00000006.suspect").is_dir()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=NIGHTLY)])
def test_a_single_wrong_result_in_a_replayed_step_is_blamed_on_its_rank(tmp_path: Path, ranks: int) -> None:
    """The flip is in the step itself, not in the replay of another rank's step."""
    flips = [{"what": "gradients", "rank": 0, "step": EVERY, "repeats": False}]
    run_in_job(tmp_path, ranks, *ENGINES["ddp"], flips=flips)
    assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=0, host="node-0")


@pytest.mark.parametrize("what", ["weights", pytest.param("moments", marks=NIGHTLY)])
def test_a_copy_of_the_weights_that_differs_is_found_and_undone(tmp_path: Path, what: str) -> None:
    """Outside of a job, the run goes back and repeats the steps: it ends with the bits of a run without the flip."""
    flips = [{"what": what, "rank": 2, "step": 5, "bit": 20}]
    settings = ("checkpoint.every=2", *ENGINES["ddp"])
    for name, each in (("flipped", flips), ("clean", [])):
        assert_finished(run_ranks(tmp_path, name, 3, *settings, flips=each))
    (event,) = events(tmp_path / "flipped", "corruption")
    assert (event["ranks"], event["hosts"], event["what"], event["step"]) == ([2], ["node-2"], "weights", 6)
    assert [event["step"] for event in events(tmp_path / "flipped", "rolled_back")] == [2]
    assert losses(tmp_path / "flipped") == losses(tmp_path / "clean")
    assert digests(tmp_path / "flipped", STEPS) == digests(tmp_path / "clean", STEPS)


@pytest.mark.nightly_cases("moments-6-6")
@pytest.mark.parametrize(("what", "step", "settled"), [("weights", 5, 4), ("moments", 6, 6)])
def test_two_ranks_repeat_steps_to_find_which_of_them_is_wrong(
    tmp_path: Path, what: str, step: int, settled: int
) -> None:
    """Wrong weights of one rank change the gradients of both, so the first difference decides, not the last."""
    run_in_job(tmp_path, 2, *ENGINES["ddp"], flips=[{"what": what, "rank": 0, "step": step, "bit": 20}])
    first, second = events(tmp_path / "run", "corruption")
    assert (first["ranks"], first["decided"], first["step"]) == ([0, 1], False, 6)
    assert (second["ranks"], second["hosts"], second["decided"], second["step"]) == ([0], ["node-0"], True, settled)
    assert [event["step"] for event in events(tmp_path / "run", "rolled_back")] == [3]
    assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=0, host="node-0")


@pytest.mark.nightly
def test_a_run_continues_once_it_is_clear_which_of_two_ranks_was_wrong(tmp_path: Path) -> None:
    flips = [{"what": "weights", "rank": 1, "step": 5}]
    for name, each in (("flipped", flips), ("clean", [])):
        assert_finished(run_ranks(tmp_path, name, 2, *ENGINES["ddp"], flips=each))
    assert [event["ranks"] for event in events(tmp_path / "flipped", "corruption")] == [[0, 1], [1]]
    assert losses(tmp_path / "flipped") == losses(tmp_path / "clean")
    assert digests(tmp_path / "flipped", STEPS) == digests(tmp_path / "clean", STEPS)
    summary = summarise(open_run(tmp_path / "flipped"))
    findings = [finding for finding in list_findings(summary) if finding.text.startswith("Silent corruption")]
    assert [finding.level for finding in findings] == ["bad"]
    assert "rank 1 on node-1" in findings[0].text


@pytest.mark.nightly
def test_replicas_of_sharded_weights_are_compared(tmp_path: Path) -> None:
    settings = ("parallel.strategy=hsdp", "parallel.shard=2", "batch.size=12", "batch.micro=1")
    run = run_in_job(tmp_path, 6, *settings, flips=[{"what": "weights", "rank": 3, "step": 5}])
    assert events(tmp_path / "run", "corruption"), run.output
    assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=3, host="node-3")


@pytest.mark.nightly
def test_a_flip_that_the_next_update_rounds_away_is_found(tmp_path: Path) -> None:
    """The copies agree again, but the gradients of all ranks contain what the wrong weight has changed."""
    run = run_in_job(tmp_path, 3, *ENGINES["ddp"], flips=[{"what": "weights", "rank": 1, "step": 7, "undo": True}])
    assert "CORRUPTION after step 7: wrong weights on rank 1 on node-1" in run.output
    assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=1, host="node-1")


@pytest.mark.nightly
def test_two_ranks_that_always_differ_are_both_named(tmp_path: Path) -> None:
    """The same bit each time: both agree with themselves, so nothing shows which is wrong."""
    flips = [{"what": "gradients", "rank": 1, "step": 3, "same": True}]
    run_in_job(tmp_path, 2, *ENGINES["ddp"], flips=flips)
    ended = assert_first_cause(tmp_path / "run", Cause.CORRUPTION, rank=None)
    assert "the gradients of rank 0 on node-0, rank 1 on node-1 differ" in ended["reason"]


def test_a_single_rank_finds_errors_that_do_not_repeat(tmp_path: Path) -> None:
    flips = [{"what": "gradients", "rank": 0, "step": 2 * EVERY, "repeats": False}]
    run = run_ranks(tmp_path, "run", 1, "parallel.strategy=single", flips=flips)
    assert_finished(run)
    assert "a single rank compares with itself, so only errors that do not repeat are found" in run.output
    (event,) = events(tmp_path / "run", "corruption")
    assert (event["ranks"], event["hosts"], event["decided"]) == ([0], ["node-0"], True)
    assert [event["step"] for event in events(tmp_path / "run", "rolled_back")] == [3]


@pytest.mark.nightly
def test_a_run_that_is_corrupted_again_and_again_ends(tmp_path: Path) -> None:
    flips = [{"what": "gradients", "rank": 1, "step": 6}]
    run = run_ranks(tmp_path, "run", 3, *ENGINES["ddp"], "health.max_rollbacks=1", flips=flips)
    assert run.wait() == Code.BROKEN, run.output
    assert len(events(tmp_path / "run", "rolled_back")) == 1
    assert outcome(tmp_path / "run")["reason"].endswith("after 1 rollbacks (health.max_rollbacks=1)")


def test_a_person_who_stops_a_corrupted_run_gets_neither_a_checkpoint_nor_another_attempt(tmp_path: Path) -> None:
    settings = (*ENGINES["ddp"], "steps=1000000", "checkpoint.every=1000000", "health.replay_every=1000000")
    arguments = [*SETTINGS, f"run.folder={tmp_path / 'run'}", *settings]
    flips = json.dumps([{"what": "weights", "rank": 2, "step": 5, "bit": 20}])
    job = str(tmp_path / "run" / "outcome.json")
    with forked(3, arguments, tmp_path, program="tests.trainer.flip_rank", FLIPS=flips, MUSTER_OUTCOME_FILE=job) as run:
        run.until(lambda: len(losses(tmp_path / "run")) > 5, "the flip")
        (tmp_path / "run" / "stop").write_text("seen enough")
        run.wait()
    ended = outcome(tmp_path / "run")
    assert (ended["outcome"], ended["reason"].split(";")[0]) == ("stopped", "seen enough"), run.output
    assert "not saved: " in ended["reason"]
    assert "node-2" in ended["reason"]
    assert [event["ranks"] for event in events(tmp_path / "run", "corruption")] == [[2]]
    assert checkpoint_steps(tmp_path / "run") == []


def test_a_confirmation_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    run = run_ranks(tmp_path, "run", 2, *ENGINES["ddp"], FAILED_CONFIRMATIONS="2")
    assert_finished(run)
    assert re.findall(r"NOT CONFIRMED step (\d+): .*No space left", run.output) == ["1", "3"]
    assert json.loads((tmp_path / "run" / "checkpoints" / "confirmed.json").read_text()) == {"step": 11}


def test_ranks_on_different_processors_are_refused_before_the_folder_is_used(tmp_path: Path) -> None:
    run = run_ranks(tmp_path, "run", 2, *ENGINES["ddp"], THREADS_OF_THE_LAST="2")
    assert run.wait() != 0
    assert "health.replay_every: set, but ranks whose processors differ compute different bits" in run.output
    assert "rank 1 on node-1 has" in run.output
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "run" / "outcome.json").exists()


def test_a_run_without_a_confirmed_checkpoint_starts_over(tmp_path: Path) -> None:
    run = run_ranks(tmp_path, "run", 3, *ENGINES["ddp"], flips=[{"what": "gradients", "rank": 2, "step": 1}])
    assert run.wait() == Code.REQUEUE, run.output
    assert outcome(tmp_path / "run")["failure"]["host"] == "node-2"
    assert checkpoint_steps(tmp_path / "run") == []


@pytest.mark.nightly
@pytest.mark.parametrize("trial", range(100))
def test_a_hundred_flips_are_all_blamed_on_the_right_host(tmp_path: Path, trial: int) -> None:
    """Any bit of any gradient or weight of any rank, from any step on, on two to four ranks."""
    choose = random.Random(trial)
    ranks, what = choose.choice((2, 3, 4)), ("gradients", "weights")[trial % 2]
    rank, step = choose.randrange(ranks), choose.randrange(5, 11)
    flips = [{"what": what, "rank": rank, "step": step, "seed": trial}]
    run = run_in_job(tmp_path, ranks, *ENGINES["ddp"], "batch.micro=1", flips=flips)
    happened = events(tmp_path / "run", "corruption")
    assert happened, f"{flips}: not noticed\n{run.output}"
    assert happened[0]["step"] < step + EVERY, f"{flips}: {happened}"
    blamed = outcome(tmp_path / "run")["failure"]
    assert (blamed["rank"], blamed["host"]) == (rank, f"node-{rank}"), f"{flips}: {happened}"
