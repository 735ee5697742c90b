"""Replays without ranks: who is to blame, fingerprints, confirmed checkpoints, and the reaction to corruption."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.curves import global_batch, make_step
from trainer.checkpoint import confirmed, read_retry
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.folder import list_published
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.retention import remove_after, select_removable
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.loop.corruptions import Reaction, choose_reaction
from trainer.replay.blame import Blame, Result, choose_shifts, find_blame
from trainer.replay.corruption import Corruption
from trainer.replay.fingerprint import GradientFingerprints, compute_fingerprint
from trainer.replay.history import WeightHistory
from trainer.replay.replays import Replays
from trainer.step import Step, StepAbandoned

HOSTS = ["a", "b", "c"]


def results(*rows: tuple[int, int, str]) -> list[Result]:
    return [Result(*row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "blame"),
    [
        ([(0, 0, "x"), (0, 1, "x"), (1, 1, "y"), (1, 0, "y")], None),
        ([(0, 0, "bad"), (0, 1, "x"), (0, 2, "x")], Blame((0,), is_decided=True)),
        # One of two ranks does not agree with itself, or was wrong once.
        ([(0, 0, "p"), (0, 0, "q"), (0, 1, "x"), (0, 1, "x")], Blame((0,), is_decided=True)),
        ([(0, 0, "bad"), (0, 0, "x"), (0, 1, "x"), (0, 1, "x")], Blame((0,), is_decided=True)),
        ([(0, 0, "x"), (0, 0, "x"), (0, 1, "bad"), (0, 1, "bad")], Blame((0, 1), is_decided=False)),
        # A rank that is wrong in its own samples and in those of another; what no majority decides does not matter.
        ([(0, 0, "x"), (0, 1, "bad"), (0, 2, "x"), (1, 1, "bad"), (1, 2, "y")], Blame((1,), is_decided=True)),
        ([(0, 0, "x"), (0, 1, "y"), (0, 2, "z")], Blame((0, 1, 2), is_decided=False)),
        # Each rank is outvoted in some item: nobody is right, so nobody is to blame.
        (
            [
                *((0, 0, "bad"), (0, 1, "x"), (0, 2, "x")),
                *((1, 1, "bad"), (1, 0, "y"), (1, 2, "y")),
                *((2, 2, "bad"), (2, 0, "z"), (2, 1, "z")),
            ],
            Blame((0, 1, 2), is_decided=False),
        ),
    ],
)
def test_the_rank_that_differs_from_most_is_wrong(rows: list[tuple[int, int, str]], blame: Blame | None) -> None:
    assert find_blame(results(*rows), HOSTS) == blame


def test_ranks_of_one_host_need_no_majority_to_name_it() -> None:
    assert find_blame(results((0, 0, "x"), (0, 1, "y")), ["a", "a"]) == Blame((0, 1), is_decided=True)


@pytest.mark.parametrize(
    ("hosts", "shifts"),
    [
        ("a", (0, (0,))),
        ("ab", (1, (0, 1))),
        ("abc", (1, (2,))),
        ("aabb", (2, (1,))),
        ("aabbcc", (2, (3,))),
        ("aaaabbbbcccc", (4, (5,))),
    ],
)
def test_samples_go_to_another_host(hosts: str, shifts: tuple[int, tuple[int, ...]]) -> None:
    assert choose_shifts(hosts) == shifts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("size", [1, 1000, 1024, 5000])
def test_every_flipped_bit_changes_the_fingerprint(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    values = (torch.randn(size) * 100).to(dtype)
    before = int(compute_fingerprint(values))
    assert int(compute_fingerprint(values.clone())) == before
    data = values.view(torch.uint8)
    for place in {0, data.numel() // 2, data.numel() - 1}:
        for bit in range(8):
            data[place] ^= 1 << bit
            assert int(compute_fingerprint(values)) != before
            data[place] ^= 1 << bit
    assert int(compute_fingerprint(values)) == before


def test_values_that_change_places_change_the_fingerprint() -> None:
    values = torch.arange(5000.0)
    swapped = values.clone()
    swapped[7], swapped[4007] = values[4007], values[7]
    assert int(compute_fingerprint(values)) != int(compute_fingerprint(swapped))
    assert int(compute_fingerprint(values.view(50, 100).T)) != int(compute_fingerprint(values))


def test_gradients_of_micro_batches_are_recorded_in_order_and_not_changed() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    recorder = GradientFingerprints({"weight": weight, "frozen": torch.ones(3)})

    def run(*factors: float) -> int:
        weight.grad = None
        with recorder.record():
            for factor in factors:
                (weight * factor).sum().backward()
        return int(recorder.values["weight"])

    first = run(1.0, 2.0)
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 3
    assert run(1.0, 2.0) == first
    assert run(2.0, 1.0) != first
    weight.sum().backward()  # outside of the block
    assert list(recorder.values) == ["weight"]
    assert int(recorder.values["weight"]) == run(2.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "offset"), [(1000, 0), (1001, 0), (1000, 1), (1, 0)])
def test_every_flipped_bit_changes_the_sum_of_a_step(dtype: torch.dtype, size: int, offset: int) -> None:
    """Values that do not fill whole words, and those that begin within one, count too."""
    values = torch.randn(offset + size).to(dtype)[offset:]
    history = WeightHistory([("weight", torch.nn.Parameter(values))], RankGroup(0, 1))
    history.record(0)
    data = values.view(torch.uint8)
    for place in {0, data.numel() // 2, data.numel() - 1}:
        for bit in range(8):
            data[place] ^= 1 << bit
            history.record(1)
            assert history.read(1) != history.read(0)
            data[place] ^= 1 << bit
    history.record(1)
    assert history.read(1) == history.read(0)


def publish(path: Path, *steps: int) -> None:
    for step in steps:
        (path / f"step-{step:08d}").mkdir(parents=True)


def test_the_newest_confirmed_checkpoint_stays() -> None:
    metrics = dict.fromkeys((10, 20, 30, 40), None)
    assert select_removable(metrics, 40, 2, "", (), confirmed_step=25) == [10]
    assert select_removable(metrics, 40, 2, "", (), confirmed_step=5) == [10, 20]
    assert select_removable(metrics, 40, 2, "", (), None) == [10, 20]


def test_unconfirmed_checkpoints_are_set_aside_once(tmp_path: Path) -> None:
    publish(tmp_path, 10, 20, 30)
    confirmed.write_confirmed(tmp_path, 19, Fence())
    assert confirmed.set_aside_unconfirmed(tmp_path, Fence(), 0) == [30, 20]
    assert [each.step for each in list_published(tmp_path)] == [10]
    suspects = sorted(path.name for path in tmp_path.glob("*.suspect"))
    assert suspects == ["step-00000020.suspect", "step-00000030.suspect"]
    publish(tmp_path, 20)
    assert confirmed.set_aside_unconfirmed(tmp_path, Fence(), 0) == [20]
    # Nothing newer is confirmed yet, so those of the first time stay too.
    suspects = sorted(path.name for path in tmp_path.glob("*.suspect"))
    assert suspects == ["step-00000020.2.suspect", "step-00000020.suspect", "step-00000030.suspect"]
    publish(tmp_path, 40, 50)
    confirmed.write_confirmed(tmp_path, 45, Fence())
    assert confirmed.set_aside_unconfirmed(tmp_path, Fence(), 0) == [50]
    assert [path.name for path in tmp_path.glob("*.suspect")] == ["step-00000050.suspect"]


def test_checkpoints_from_before_the_first_replay_are_not_set_aside(tmp_path: Path) -> None:
    """Replays are switched on in a run that resumes at step 20."""
    publish(tmp_path, 10, 20, 30)
    assert confirmed.set_aside_unconfirmed(tmp_path, Fence(), 20) == [30]
    assert [each.step for each in list_published(tmp_path)] == [20, 10]


def test_a_record_that_cannot_be_read_does_not_mean_that_nothing_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    publish(tmp_path, 10, 20)
    confirmed.write_confirmed(tmp_path, 10, Fence())
    monkeypatch.setattr(read_retry, "RETRY_WAITS_S", (0.01,))
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(read_retry.UnreadableCheckpoint, match=r"confirmed\.json"):
        confirmed.set_aside_unconfirmed(tmp_path, Fence(), 0)
    assert [each.step for each in list_published(tmp_path)] == [20, 10]


def test_an_abandoned_replay_leaves_neither_gradients_nor_statistics() -> None:
    step = make_step(load("tiny-llama", ["batch.size=4", "batch.micro=2", "parallel.strategy=single"]))
    engine: Any = step.engine
    statistics = torch.zeros(3)
    replays = make_replays(step, statistics)

    def stop(index: int, _: int) -> None:
        statistics.add_(1)
        raise StepAbandoned(f"before micro-batch {index}")

    engine.before_micro_batch = stop
    with pytest.raises(StepAbandoned, match="before micro-batch 1"):
        replays._replay(0, 0)
    assert statistics.tolist() == [0.0] * 3
    assert all(value.grad is None for _, value in engine.named_parameters())


def make_replays(step: Step, statistics: torch.Tensor) -> Replays:
    """Return the replays of a single rank whose model has these statistics."""
    engine: Any = step.engine
    engine.named_buffers = lambda: [("statistics", statistics)]
    world: Any = SimpleNamespace(rank=0, size=1, group=None, members=[SimpleNamespace(host="a")])
    config = load("tiny-llama", ["batch.size=4", "batch.micro=2", "parallel.strategy=single"])
    return Replays(step, world, 0, lambda *_: global_batch(config, 0), 2)


def test_a_confirmation_does_not_outlive_a_rollback_to_an_earlier_step(tmp_path: Path) -> None:
    publish(tmp_path, 10, 20)
    confirmed.write_confirmed(tmp_path, 19, Fence())
    remove_after(tmp_path, 10, Fence())
    assert confirmed.read_confirmed(tmp_path) == 10
    confirmed.limit_confirmed(tmp_path, 15, Fence())
    assert confirmed.read_confirmed(tmp_path) == 10
    confirmed.forget_confirmed(tmp_path, Fence())
    assert confirmed.read_confirmed(tmp_path) is None


@pytest.mark.parametrize(
    ("corruption", "in_job", "can_roll_back", "rollbacks_left", "reaction"),
    [
        ({}, True, True, 3, Reaction.LEAVE),
        ({"is_decided": False}, True, True, 3, Reaction.LEAVE),
        ({"is_decided": False, "may_be_decided": True}, True, True, 3, Reaction.ROLL_BACK),
        ({"is_decided": False, "may_be_decided": True}, True, False, 3, Reaction.START_OVER),
        ({}, False, True, 1, Reaction.ROLL_BACK),
        ({}, False, True, 0, Reaction.GIVE_UP),
        ({}, False, False, 3, Reaction.START_OVER),
        ({"is_past": True}, False, True, 0, Reaction.CONTINUE),
    ],
)
def test_a_job_leaves_the_node_and_others_go_back(
    corruption: dict[str, bool], in_job: bool, can_roll_back: bool, rollbacks_left: int, reaction: Reaction
) -> None:
    described = Corruption(step=9, what="weights", ranks=(1,), hosts=("b",), **{"is_decided": True, **corruption})
    chosen = choose_reaction(described, in_job=in_job, can_roll_back=can_roll_back, rollbacks_left=rollbacks_left)
    assert chosen is reaction


@pytest.mark.parametrize(
    ("settings", "where", "text"),
    [
        (["parallel.tensor=2"], "parallel.tensor", "2, but a replay needs ranks that compute whole samples alone"),
        (["parallel.pipeline=2"], "parallel.pipeline", "2, but a replay needs ranks that compute whole samples"),
        (["communication.compression=int8", "parallel.strategy=ddp"], "communication.compression", "int8, but a "),
        (["compile.cuda_graph=true"], "compile.cuda_graph", "true, but gradients inside a CUDA graph"),
        (["checkpoint.every=never"], "checkpoint.every", "never, but a corrupted run goes back to a checkpoint"),
        (["run.device=cuda"], "run.deterministic", "false, but kernels of a GPU may then differ in the last bit"),
    ],
)
def test_settings_that_replays_cannot_work_with_are_rejected(settings: list[str], where: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load("tiny-llama", ["health.replay_every=500", *settings])
    (problem,) = [problem for problem in error.value.problems if "health.replay_every=500" in problem.message]
    assert problem.where == where
    assert problem.message.startswith(text)
    assert problem.fix.endswith("or health.replay_every to 0")
