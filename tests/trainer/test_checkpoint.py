"""Saving while training and loading again, in one process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.trainer.checkpoint_state import are_equal, find_writer, make_state, make_tensors, make_zeros, save_and_wait
from trainer import safetensors_file
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.errors import ConfigError


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    yield checkpoints
    checkpoints.close()


def test_a_saved_state_is_loaded_bit_for_bit(checkpoints: Checkpoints) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = make_state() | {
        "model.transposed": torch.randn(4, 6, generator=generator).T,
        "model.double": torch.randn(3, generator=generator).double(),
        "model.none": torch.zeros(0, 3),
        "model.nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "buffer.flags": torch.tensor([True, False]),
        "buffer.count": torch.tensor(3),
    }
    state = {"step": 7, "position": 224, "rate": 0.1 + 0.2}
    checkpoints.check_folder(tensors)
    events = save_and_wait(checkpoints, 7, tensors, metric=1.5, own={"rng": "abc"})
    assert [(event.kind, event.step) for event in events] == [("published", 7)]
    checkpoints.save(8, tensors, state)
    checkpoints.wait()

    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.metric, checkpoint.skipped) == (8, None, ())
    assert checkpoints.read_state(checkpoint) == state
    assert checkpoints.read_own(checkpoint) == {}
    loaded = make_zeros(tensors)
    checkpoints.load(checkpoint, loaded)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert safetensors_file.to_bytes(loaded[name]) == safetensors_file.to_bytes(tensor), name


def test_an_empty_folder_has_no_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None


def test_a_save_contains_the_state_at_its_start(checkpoints: Checkpoints) -> None:
    """Parameters change after `before_update`, but running means change in the next forward pass already."""
    tensors = make_tensors(64 << 20, seed=1) | {"buffer.mean": torch.zeros(5)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for step in (1, 2):
        checkpoints.save(step, tensors, {})
        tensors["buffer.mean"].fill_(7)
        checkpoints.before_update()
        for name in tensors:
            tensors[name].fill_(9)
        checkpoints.wait()
        checkpoint = checkpoints.newest()
        assert checkpoint is not None
        loaded = make_zeros(tensors)
        checkpoints.load(checkpoint, loaded)
        assert are_equal(loaded, before)
        for name in tensors:
            tensors[name].copy_(before[name])


def test_a_save_during_a_save_waits_and_both_are_published(checkpoints: Checkpoints) -> None:
    tensors = make_tensors(32 << 20, seed=1)
    checkpoints.save(1, tensors, {})
    assert checkpoints.busy
    checkpoints.save(2, tensors, {})
    checkpoints.wait()
    assert [(event.kind, event.step) for event in checkpoints.poll()] == [("published", 1), ("published", 2)]
    assert not checkpoints.busy
    assert checkpoints.poll() == []


def test_a_synchronous_save_is_published_when_it_returns(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, asynchronous=False)
    checkpoints.save(3, make_state(), {})
    assert not checkpoints.busy
    assert (tmp_path / "step-00000003" / "manifest.json").exists()
    checkpoints.close()


def test_state_that_grows_gets_a_new_plan(checkpoints: Checkpoints) -> None:
    """An optimizer creates its state at its first step."""
    tensors = make_state()
    save_and_wait(checkpoints, 1, tensors)
    tensors |= {"optim.late.exp_avg": torch.randn(1 << 16)}
    assert [event.kind for event in save_and_wait(checkpoints, 2, tensors)] == ["published"]
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    loaded = make_zeros(tensors)
    checkpoints.load(checkpoint, loaded)
    assert are_equal(loaded, tensors)


def test_a_checkpoint_of_another_model_is_rejected_with_the_differences(checkpoints: Checkpoints) -> None:
    save_and_wait(checkpoints, 1, make_state())
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    other = make_zeros(make_state()) | {"model.wide": torch.zeros(10, 8), "model.new": torch.zeros(1)}
    del other["model.vector"]
    with pytest.raises(ConfigError) as caught:
        checkpoints.load(checkpoint, other)
    text = str(caught.value)
    assert "is a checkpoint of another model" in text
    assert "missing in the checkpoint: model.new" in text
    assert "missing in the model: model.vector" in text
    assert "model.wide is F32 [10, 6] there and F32 [10, 8] here" in text


def test_a_part_of_a_checkpoint_can_be_loaded(checkpoints: Checkpoints) -> None:
    save_and_wait(checkpoints, 1, make_state())
    single = Checkpoints(checkpoints.path / "step-00000001")
    checkpoint = single.newest()
    assert checkpoint is not None
    weights = {name: tensor for name, tensor in make_zeros(make_state()).items() if name.startswith("model.")}
    single.load(checkpoint, weights, partial=True)
    assert are_equal(weights, {name: tensor for name, tensor in make_state().items() if name.startswith("model.")})


def test_too_little_space_is_reported_before_the_first_step(checkpoints: Checkpoints) -> None:
    huge = {"model.huge": torch.empty(1 << 50, device="meta")}
    with pytest.raises(ConfigError, match=r"run.folder: .* GB free and one checkpoint needs 4503599.6 GB"):
        checkpoints.check_folder(huge)


def test_leftovers_of_a_dead_run_are_removed(checkpoints: Checkpoints) -> None:
    leftover = checkpoints.path / "step-00000009.0a1b2c3d-4.partial"
    leftover.mkdir(parents=True)
    (leftover / "shard-00000.safetensors").write_bytes(b"half")
    assert checkpoints.newest() is None
    checkpoints.check_folder(make_state())
    assert not leftover.exists()


def test_a_shard_is_a_plain_safetensors_file(checkpoints: Checkpoints) -> None:
    save_and_wait(checkpoints, 1, make_state())
    shard = checkpoints.path / "step-00000001" / "shard-00000.safetensors"
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    ends = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    assert 8 + length + ends[-1][1] == len(content)
    assert are_equal({name: safetensors_file.Reader(shard)[name] for name in make_state()}, make_state())


def test_the_writer_can_import_only_the_standard_library(checkpoints: Checkpoints) -> None:
    checkpoints.prepare(make_state())
    writer = find_writer(os.getpid())
    assert b"-S" in Path(f"/proc/{writer}/cmdline").read_bytes().split(b"\0")
    assert "torch" not in Path(f"/proc/{writer}/maps").read_text()
