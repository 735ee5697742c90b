"""A checkpoint can be loaded bit for bit with any other number of ranks and strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.checkpoint_state import SHAPES, are_equal, make_state, make_zeros
from tests.trainer.ranks import on_ranks
from trainer import safetensors_file
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.errors import ConfigError

HERE = "tests.trainer.checkpoint_state"


@pytest.fixture(scope="module")
def saved_by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a checkpoint of each layout, saved by four ranks."""
    folders = {layout: tmp_path_factory.mktemp(layout) for layout in ("plain", "fsdp", "columns", "hsdp")}
    for step, (layout, path) in enumerate(folders.items(), start=1):
        kinds = on_ranks(f"{HERE}:save_as", path=path, layout=layout, step=step)
        assert kinds == [["published"], ["written"], ["written"], ["written"]]
    return folders


@pytest.mark.parametrize("layout", ["plain", "fsdp", "columns", "hsdp"])
def test_a_checkpoint_of_four_ranks_is_loaded_by_two_and_by_one(
    saved_by: dict[str, Path], tmp_path: Path, layout: str
) -> None:
    other = {"plain": "fsdp", "fsdp": "plain", "columns": "fsdp", "hsdp": "columns"}[layout]
    assert all(rank["same"] for rank in on_ranks(f"{HERE}:load_as", ranks=2, path=saved_by[layout], layout=other))

    alone = Checkpoints(saved_by[layout])
    checkpoint = alone.newest()
    assert checkpoint is not None
    tensors = make_zeros(make_state())
    alone.load(checkpoint, tensors)
    assert are_equal(tensors, make_state())


def test_the_state_of_a_rank_is_restored_only_in_a_world_of_the_same_size(saved_by: dict[str, Path]) -> None:
    again = on_ranks(f"{HERE}:load_as", path=saved_by["fsdp"], layout="hsdp")
    assert [rank["own"] for rank in again] == [{"mine": rank} for rank in range(4)]
    assert all(rank["same"] for rank in again)
    fewer = on_ranks(f"{HERE}:load_as", ranks=2, path=saved_by["fsdp"], layout="fsdp")
    assert [rank["own"] for rank in fewer] == [None, None]


def test_a_checkpoint_of_one_rank_is_loaded_by_four(tmp_path: Path) -> None:
    alone = Checkpoints(tmp_path)
    alone.save(9, make_state(), {})
    alone.close()
    assert all(rank["same"] for rank in on_ranks(f"{HERE}:load_as", path=tmp_path, layout="hsdp"))


def test_every_byte_is_written_once_and_ranks_share_the_work(saved_by: dict[str, Path]) -> None:
    expected = sum(tensor.numel() * tensor.element_size() for tensor in make_state().values())
    for layout, path in saved_by.items():
        (step,) = path.iterdir()
        heads = [safetensors_file.read_header(file) for file in sorted(step.glob("*.safetensors"))]
        sizes = [sum(entry.end - entry.start for entry in head.tensors.values()) for head in heads]
        assert sum(sizes) == expected, layout
        assert min(sizes) > 0, layout


def test_the_index_locates_every_tensor_in_plain_safetensors_files(saved_by: dict[str, Path]) -> None:
    (step,) = saved_by["fsdp"].iterdir()
    index = json.loads((step / "index.json").read_text())["tensors"]
    assert set(index) == set(make_state())
    for name in SHAPES:
        assert index[name]["shape"] == list(SHAPES[name])
        for chunk in index[name]["chunks"]:
            entry = safetensors_file.read_header(step / chunk["file"]).tensors[chunk["name"]]
            assert [entry.start, entry.end] == chunk["bytes"]
            assert list(entry.shape) == chunk["sizes"]
    assert not list(step.glob("done-*"))


def test_a_long_index_is_written_and_read_by_all_ranks_together(tmp_path: Path) -> None:
    on_ranks(f"{HERE}:save_as", path=tmp_path, layout="fsdp", step=1, max_index_chunks=4)
    (step,) = tmp_path.iterdir()
    names = [f"index-{rank:05d}.json" for rank in range(4)]
    assert json.loads((step / "index.json").read_text()) == {"version": 2, "parts": names}
    parts = [json.loads((step / name).read_text())["tensors"] for name in names]
    assert all("model.wide" in part for part in parts)
    lengths = [sum(len(entry["chunks"]) for entry in part.values()) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    for ranks in (4, 2):
        assert all(rank["same"] for rank in on_ranks(f"{HERE}:load_as", ranks=ranks, path=tmp_path, layout="columns"))
    alone = Checkpoints(tmp_path)
    checkpoint = alone.newest()
    assert checkpoint is not None
    tensors = make_zeros(make_state())
    alone.load(checkpoint, tensors)
    assert are_equal(tensors, make_state())
    assert set(json.loads((step / "manifest.json").read_text())["files"]) >= {"index.json", *names}
    (step / names[2]).unlink()
    with pytest.raises(ConfigError, match=names[2]):
        alone.newest()
