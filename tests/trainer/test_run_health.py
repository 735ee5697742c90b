"""An unhealthy loss has a policy: updates that are no numbers are left out, spikes are undone, and neither for ever."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.launch import (
    SMALL_LLAMA,
    checkpoint,
    events,
    finished,
    lines,
    losses,
    outcome,
    sample_ids,
    torchrun,
)
from trainer.__main__ import main
from trainer.data import index, order
from trainer.life.outcome import Code

EXPLOSIVE = [*SMALL_LLAMA, "steps=40", "optimizer.lr=1e30", "schedule.kind=constant", "checkpoint.every=0"]
STEPS, BATCH, SEQ_LEN, SAMPLES = 36, 4, 16, 400
SPIKE, GOOD = 31, 30


def test_updates_that_are_no_numbers_are_skipped_until_it_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert main([*EXPLOSIVE, f"run.folder={folder}", "health.max_skips=3"]) == Code.BROKEN
    ended = outcome(folder)
    assert ended["outcome"] == "broken"
    assert "4 updates in a row (health.max_skips=3): lower optimizer.lr" in ended["reason"]
    told = [event["message"] for event in events(folder, "unhealthy")]
    assert len(told) == 4
    assert told[0].endswith("skipped, 1 in a row")
    skipped = [line["skipped"] for line in lines(folder / "metrics" / "rank-00000.jsonl")]
    assert skipped[-4:] == [1.0] * 4
    # Nothing of a broken state is kept for a resume.
    assert not list((folder / "checkpoints").glob("step-*"))


def test_the_first_of_them_can_be_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main([*EXPLOSIVE, f"run.folder={folder}", "health.nonfinite=stop"]) == Code.BROKEN
    assert outcome(folder)["reason"].endswith("its update has a NaN or an infinity in it (health.nonfinite=stop)")
    assert len(events(folder, "unhealthy")) == 1
    assert "broken at step" in capfd.readouterr().out


def test_a_spike_is_rolled_back_and_its_data_passed_over(tmp_path: Path) -> None:
    """Two ranks: both must come to the same verdict in the same step without asking each other."""
    folder = tmp_path / "run"
    poisoned_shards(tmp_path / "shards")
    words = [
        *SMALL_LLAMA,
        "data.kind=tokens",
        f"data.path={tmp_path / 'shards'}",
        f"steps={STEPS}",
        f"batch.size={BATCH}",
        "optimizer.lr=0.02",
        "parallel.strategy=ddp",
        "checkpoint.every=10",
        "checkpoint.asynchronous=false",
        "health.spike=rollback",
        "health.window=10",
        "metrics.sample_ids=true",
        f"run.folder={folder}",
    ]
    with torchrun(2, words, tmp_path) as run:
        finished(run)
    # The loss of a step is read in the next one, so that one's data is passed over too.
    (back,) = events(folder, "rolled_back")
    assert (back["step"], back["position"]) == (GOOD, (SPIKE + 1) * BATCH)
    (told,) = events(folder, "unhealthy")
    assert told["step"] == SPIKE
    assert f"UNHEALTHY step {SPIKE}: loss " in run.said

    seen = sample_ids(folder)
    assert sorted(seen) == sorted(losses(folder)) == list(range(1, STEPS + 1))
    for step in seen:
        batches_before = step - 1 if step <= GOOD else step + 1
        assert seen[step] == ids_at(batches_before * BATCH)
    assert max(loss for step, loss in losses(folder).items() if step > GOOD) < 1.0
    state = json.loads((checkpoint(folder, STEPS) / "state.json").read_text())
    assert state["extra"]["position"] == (STEPS + 2) * BATCH


def poisoned_shards(folder: Path) -> None:
    """Text that repeats itself, and at the samples of one step other tokens that nothing leads one to expect."""
    tokens = np.tile(np.arange(8, dtype="<u2"), SAMPLES * SEQ_LEN // 8 + 1)[: SAMPLES * SEQ_LEN + 1]
    random = np.random.default_rng(1)
    for sample in ids_at((SPIKE - 1) * BATCH):
        tokens[sample * SEQ_LEN : (sample + 1) * SEQ_LEN] = random.integers(100, 256, SEQ_LEN)
    folder.mkdir()
    (folder / "0.bin").write_bytes(tokens.tobytes())
    shard = index.Shard("0.bin", len(tokens), int(tokens.max()), sha256(tokens.tobytes()).hexdigest())
    index.write(folder, index.Index("uint16", 256, "bytes", None, (shard,)))


def ids_at(position: int) -> list[int]:
    return [int(id_) for id_ in order.sample_ids(1, position, BATCH, SAMPLES)]
