"""Values that ranks exchange as JSON: the same on all of them, errors included, and without any pickle."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer.checkpoint_state import open_checkpoints, save_and_wait
from tests.trainer.ranks import on_ranks
from tests.trainer.test_optimizer_ranks import digest
from tests.trainer.test_stored_formats import make_config, make_step, run_steps
from trainer.checkpoint.group import RankGroup
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import from_dict
from trainer.json_exchange import broadcast_from_first, gather_values

HERE = "tests.trainer.test_json_exchange"
RANKS = 3
VALUES: list[Any] = [{"name": "ü" * 1000, "none": None}, [], 0.1]
ERRORS = {
    "settings": ConfigError([ConfigProblem("model", "wrong", "fix it"), ConfigProblem("data", "missing")]),
    "disk": OSError(errno.ENOSPC, "No space left on device", "/data/run"),
    "other": ValueError("it is\nbroken"),
}


def test_values_of_different_lengths_arrive_everywhere() -> None:
    for answer in on_ranks(f"{HERE}:exchange", ranks=RANKS):
        assert answer["gathered"] == VALUES
        assert answer["broadcast"] == VALUES[0]
        assert answer["decided"] == [answer["rank"], VALUES]


def exchange() -> dict[str, Any]:
    group, rank = dist.group.WORLD, dist.get_rank()
    ranks = RankGroup(rank, RANKS, group)
    return {
        "rank": rank,
        "gathered": gather_values(VALUES[rank], group),
        "broadcast": broadcast_from_first(VALUES[rank], group),
        "decided": ranks.decide_on_first(VALUES[rank], lambda values: [(each, values) for each in range(RANKS)]),
    }


def test_the_answer_of_rank_0_is_sent_to_nobody_however_long_it_is() -> None:
    (first, sent), *others = on_ranks(f"{HERE}:answer_rank_0_at_length", ranks=RANKS)
    assert first == LONG
    assert [answer for answer, _ in others] == [1, 2]
    assert sum(sent) < 100


LONG = "index" * 100_000


def answer_rank_0_at_length() -> tuple[Any, list[int]]:
    """Return this rank's answer, and the bytes that rank 0 has sent to each rank."""
    sent: list[int] = []
    scatter = dist.scatter

    def record(own: Any, rows: Any = None, **options: Any) -> None:
        sent.extend(map(len, rows or ()))
        scatter(own, rows, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "scatter", record)
        group = RankGroup(dist.get_rank(), RANKS, dist.group.WORLD)
        return group.decide_on_first(None, lambda _: [LONG, *range(1, RANKS)]), sent


def test_a_single_process_gets_values_in_the_same_form() -> None:
    alone = RankGroup(0, 1)
    assert alone.gather((1, 2)) == [[1, 2]]
    assert alone.run_on_first(lambda: (1, {"a": ()})) == [1, {"a": []}]
    with pytest.raises(TypeError, match="not JSON serializable"):
        alone.gather(Path())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_rank_0_is_raised_on_all(name: str) -> None:
    first, *others = on_ranks(f"{HERE}:catch_error", ranks=RANKS, name=name, failing=None)
    expected = ERRORS[name]
    assert first == (type(expected).__name__, str(expected))
    same = name != "other"
    assert others == [first if same else ("RuntimeError", "another rank failed: ValueError: it is\nbroken")] * 2


@pytest.mark.parametrize("name", ERRORS)
def test_ranks_that_fail_with_another_one_name_it(name: str) -> None:
    answers = on_ranks(f"{HERE}:catch_error", ranks=RANKS, name=name, failing=1)
    expected, place = ERRORS[name], f"rank 1 on {socket.gethostname()}"
    assert answers[1] == (type(expected).__name__, str(expected))
    other = ("PeerError", f"{place} failed: {type(expected).__name__}: {expected}")
    if name == "settings":
        other = ("ConfigError", f"model: wrong ({place}); fix it\ndata: missing ({place})")
    assert [answers[0], answers[2]] == [other] * 2


def catch_error(name: str, failing: int | None) -> tuple[str, str]:
    """Return the error of a function that runs on rank 0 only or, if it fails on one rank, on all of them."""
    group = RankGroup(dist.get_rank(), RANKS, dist.group.WORLD)
    try:
        if failing is None:
            group.run_on_first(lambda: raise_error(name))
        else:
            group.run_together(lambda: raise_error(name) if group.rank == failing else None)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("no error")


def raise_error(name: str) -> None:
    raise ERRORS[name]


def test_a_result_that_is_not_json_fails_on_all_ranks() -> None:
    for kind, text in on_ranks(f"{HERE}:answer_with_path", ranks=RANKS):
        assert kind in ("TypeError", "RuntimeError")
        assert "Object of type PosixPath is not JSON serializable" in text


def answer_with_path() -> tuple[str, str]:
    try:
        RankGroup(dist.get_rank(), RANKS, dist.group.WORLD).run_on_first(Path)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("no error")


@pytest.mark.nightly_cases("fsdp tensor=2")
@pytest.mark.parametrize(
    "strategy", ["ddp pipeline=2", "fsdp tensor=2", pytest.param("hsdp shard=2", marks=pytest.mark.nightly)]
)
def test_training_saves_and_resumes_without_pickled_objects(strategy: str, tmp_path: Path) -> None:
    config = make_config(strategy, ())
    for saved, loaded in on_ranks(f"{HERE}:train_and_reload", ranks=4, config=config, path=tmp_path):
        assert saved == loaded


def train_and_reload(config: dict[str, Any], path: Path) -> tuple[str, str]:
    with without_pickled_objects():
        step, loaded = (make_step(from_dict(config)) for _ in range(2))
        run_steps(step, config, range(1))
        checkpoints = open_checkpoints(path)
        save_and_wait(checkpoints, 1, step.saved_tensors())
        checkpoint = checkpoints.newest()
        assert checkpoint is not None
        checkpoints.load(checkpoint, loaded.tensors())
        checkpoints.close()
    return digest(step.tensors()), digest(loaded.tensors())


@contextmanager
def without_pickled_objects() -> Iterator[None]:
    """Make every object collective of torch fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.distributed_c10d._object_to_tensor", None)
        patch.setattr("torch.distributed.distributed_c10d._tensor_to_object", None)
        yield


def test_ranks_that_cannot_read_a_part_keep_their_own_error(tmp_path: Path) -> None:
    answers = on_ranks(f"{HERE}:load_damaged", ranks=2, config=make_config("fsdp", ()), path=tmp_path)
    assert [kind for kind, _ in answers] == ["FileNotFoundError", "FileNotFoundError"]
    assert all("shard-00001.safetensors" in text for _, text in answers)


def load_damaged(config: dict[str, Any], path: Path) -> tuple[str, str]:
    """Load a checkpoint of two ranks after a file was removed from which both read."""
    step = make_step(from_dict(config))
    checkpoints = open_checkpoints(path)
    save_and_wait(checkpoints, 1, step.saved_tensors())
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    dist.barrier()
    if dist.get_rank() == 0:
        (checkpoint.path / "shard-00001.safetensors").unlink()
    dist.barrier()
    try:
        checkpoints.load(checkpoint, step.tensors())
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        checkpoints.close()
    raise AssertionError("no error")
