"""Policies for an unhealthy loss: nonfinite updates are skipped and spikes rolled back, up to a limit."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.first_cause import assert_first_cause
from tests.trainer.launch import (
    SMALL_LLAMA,
    assert_finished,
    checkpoint,
    checkpoint_steps,
    events,
    forked,
    lines,
    losses,
    outcome,
    sample_ids,
)
from trainer.__main__ import main
from trainer.data import index, order
from trainer.life.cause import Cause
from trainer.life.outcome import Code

EXPLOSIVE = [*SMALL_LLAMA, "steps=40", "optimizer.lr=1e30", "schedule.kind=constant", "checkpoint.every=0"]
STEPS, BATCH, SEQ_LEN, SAMPLES = 36, 4, 16, 400


@pytest.mark.fault(30)
def test_nonfinite_updates_are_skipped_up_to_a_limit(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert main([*EXPLOSIVE, f"run.folder={folder}", "health.max_skips=3"]) == Code.BROKEN
    ended = assert_first_cause(folder, Cause.NUMERICS, rank=None)
    assert ended["outcome"] == "broken"
    assert "4 updates in a row (health.max_skips=3): lower optimizer.lr" in ended["reason"]
    messages = [event["message"] for event in events(folder, "unhealthy")]
    assert len(messages) == 4
    assert messages[0].endswith("skipped, 1 in a row")
    skipped = [line["skipped"] for line in lines(folder / "metrics" / "rank-00000.jsonl")]
    assert skipped[-4:] == [1.0] * 4
    # A broken state is not saved for a resume.
    assert not list((folder / "checkpoints").glob("step-*"))


@pytest.mark.fault(30)
def test_the_first_nonfinite_update_can_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main([*EXPLOSIVE, f"run.folder={folder}", "health.nonfinite=stop"]) == Code.BROKEN
    assert outcome(folder)["reason"].endswith("its update contains a NaN or an infinity (health.nonfinite=stop)")
    assert len(events(folder, "unhealthy")) == 1
    assert "broken at step" in capfd.readouterr().out


@pytest.mark.fault(30)
def test_a_spike_is_rolled_back_and_its_data_skipped(tmp_path: Path) -> None:
    """The ranks vote on the rollback: the loss of step 32 is read in step 33, and the vote of that step in step 34."""
    folder, spike, good = tmp_path / "run", 32, 30
    with forked(2, [*make_spikes(tmp_path, spike), "parallel.strategy=ddp"], tmp_path) as run:
        assert_finished(run)
    (back,) = events(folder, "rolled_back")
    assert (back["step"], back["position"]) == (good, (spike + 2) * BATCH)
    (event,) = events(folder, "unhealthy")
    assert event["step"] == spike
    assert f"UNHEALTHY step {spike}: loss " in run.output

    seen, skipped_batches = sample_ids(folder), spike + 2 - good
    assert sorted(seen) == sorted(losses(folder)) == list(range(1, STEPS + 1))
    for step in seen:
        batches_before = step - 1 if step <= good else step - 1 + skipped_batches
        assert seen[step] == ids_at(batches_before * BATCH)
    assert max(loss for step, loss in losses(folder).items() if step > good) < 1.0
    state = json.loads((checkpoint(folder, STEPS) / "state.json").read_text())
    assert state["extra"]["position"] == (STEPS + skipped_batches) * BATCH


def test_ranks_that_judge_differently_roll_back_together(tmp_path: Path) -> None:
    """Last bits of a loss may differ between ranks, so that only one of them sees a spike."""
    folder = tmp_path / "run"
    settings = [*make_spikes(tmp_path, 32), "parallel.strategy=ddp"]
    with forked(2, settings, tmp_path, program="tests.trainer.tolerant_rank", TOLERANT_RANK="0") as run:
        assert_finished(run)
    assert [event["step"] for event in events(folder, "rolled_back")] == [30]
    assert not events(folder, "unhealthy")  # rank 0 writes the events, and its own verdict was good
    assert sorted(losses(folder)) == sorted(losses(folder, rank=1)) == list(range(1, STEPS + 1))


def test_a_verdict_of_one_rank_ends_the_run_on_all(tmp_path: Path) -> None:
    settings = [*make_spikes(tmp_path, 32), "parallel.strategy=ddp", "health.spike=stop"]
    with forked(2, settings, tmp_path, program="tests.trainer.tolerant_rank", TOLERANT_RANK="0") as run:
        assert run.wait() == Code.BROKEN, run.output
    # The reason is that of rank 1 or, if rank 0 writes it first, that another rank has rejected the loss.
    assert "step 32" in outcome(tmp_path / "run")["reason"]


@pytest.mark.nightly
def test_a_rollback_does_not_use_a_checkpoint_right_before_the_spike(tmp_path: Path) -> None:
    """The loss of step 31 is the first to show the effect of update 30, which checkpoint 30 contains."""
    folder = tmp_path / "run"
    assert main([*make_spikes(tmp_path, 31), "steps=33"]) == Code.FINISHED
    (back,) = events(folder, "rolled_back")
    assert back["step"] == 20
    # Checkpoint 30 existed before, and was written again after the rollback to 20.
    assert [event["step"] for event in events(folder, "save_published")] == [10, 20, 30, 30, 33]
    assert max(loss for step, loss in losses(folder).items() if step > 20) < 1.0


@pytest.mark.nightly
def test_a_rollback_uses_a_checkpoint_right_before_the_spike_if_it_is_the_only_one(tmp_path: Path) -> None:
    assert main([*make_spikes(tmp_path, 21), "steps=23", "checkpoint.every=20"]) == Code.FINISHED
    assert [event["step"] for event in events(tmp_path / "run", "rolled_back")] == [20]


def test_a_spike_is_not_saved_even_if_a_save_is_due(tmp_path: Path) -> None:
    """Nothing of the spike may be on disk at any time, because the run could be killed."""
    folder = tmp_path / "run"
    assert main([*make_spikes(tmp_path, 30), "steps=31"]) == Code.FINISHED
    (back,) = events(folder, "rolled_back")
    assert back["step"] == 20
    published = events(folder, "save_published")
    assert [event["step"] for event in published] == [10, 20, 30, 31]
    assert published[2]["time"] > back["time"]


def test_a_spike_in_the_last_step_does_not_end_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert main([*make_spikes(tmp_path, 26), "steps=26"]) == Code.FINISHED
    assert [event["step"] for event in events(folder, "rolled_back")] == [20]
    assert outcome(folder)["step"] == 26
    assert max(losses(folder)) == 26
    assert losses(folder)[26] < 1.0


def test_a_rollback_removes_later_checkpoints(tmp_path: Path) -> None:
    """The run ends after the rollback to step 20 and before the next save; a resume must not find checkpoint 30."""
    folder = tmp_path / "run"
    assert main([*make_spikes(tmp_path, 31, 36), "health.max_rollbacks=1"]) == Code.BROKEN
    assert [event["step"] for event in events(folder, "rolled_back")] == [20]
    assert checkpoint_steps(folder) == [10, 20]


def make_spikes(tmp_path: Path, *spikes: int) -> list[str]:
    """Return the settings of a run whose data is bad in these steps."""
    write_poisoned_shards(tmp_path / "shards", spikes)
    return [
        *SMALL_LLAMA,
        "data.kind=tokens",
        f"data.path={tmp_path / 'shards'}",
        f"steps={STEPS}",
        f"batch.size={BATCH}",
        "optimizer.lr=0.02",
        "checkpoint.every=10",
        "checkpoint.asynchronous=false",
        "health.spike=rollback",
        "health.window=10",
        "metrics.sample_ids=true",
        f"run.folder={tmp_path / 'run'}",
    ]


def write_poisoned_shards(folder: Path, spikes: tuple[int, ...]) -> None:
    """Write repeating text, with unexpected tokens in the samples of some steps."""
    tokens = np.tile(np.arange(8, dtype="<u2"), SAMPLES * SEQ_LEN // 8 + 1)[: SAMPLES * SEQ_LEN + 1]
    random = np.random.default_rng(1)
    for sample in [sample for spike in spikes for sample in ids_at((spike - 1) * BATCH)]:
        tokens[sample * SEQ_LEN : (sample + 1) * SEQ_LEN] = random.integers(100, 256, SEQ_LEN)
    folder.mkdir()
    (folder / "0.bin").write_bytes(tokens.tobytes())
    shard = index.Shard("0.bin", len(tokens), int(tokens.max()), sha256(tokens.tobytes()).hexdigest())
    index.write(folder, index.Index("uint16", 256, "bytes", None, (shard,)))


def ids_at(position: int) -> list[int]:
    return [int(id_) for id_ in order.sample_ids(1, position, BATCH, SAMPLES)]
