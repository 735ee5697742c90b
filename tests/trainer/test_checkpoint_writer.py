"""The part of one rank in a save: which rank is blamed if it cannot be written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint import folder, writer
from trainer.checkpoint.job import SaveJob


@pytest.mark.parametrize(("before", "is_created_again"), [("shard", False), ("rank", False), ("rank", True)])
def test_a_rank_whose_files_rank_0_removes_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, is_created_again: bool
) -> None:
    """Rank 0 removes a save that it cannot write, while another rank may still be writing; a third may just begin."""
    job = SaveJob(
        directory=str(tmp_path), step=1, token="e1-0-1", rank=1, world_size=3, size=3,
        texts={folder.own_name(1): "{}"}, metric=None, keep=1, best="",
    )  # fmt: skip
    target, name = (writer, "write_shard") if before == "shard" else (folder, "write_file")
    write = getattr(target, name)

    def write_removed(path: Path, content: Any) -> Any:
        shutil.rmtree(job.partial)
        if is_created_again:
            job.partial.mkdir()
            (job.partial / f"{path.name}.new").symlink_to(tmp_path / "nowhere" / "file")
        return write(path, content)

    monkeypatch.setattr(target, name, write_removed)
    result = writer.save(job, memoryview(b"abc"), set())
    assert (result["kind"], result["failed_rank"]) == ("failed", None)
    assert result["reason"] == "rank 0 has abandoned this save"


def test_a_rank_that_cannot_create_its_file_is_blamed(tmp_path: Path) -> None:
    job = SaveJob(
        directory=str(tmp_path), step=1, token="e1-0-1", rank=1, world_size=2, size=3,
        texts={"nowhere/file": "{}"}, metric=None, keep=1, best="",
    )  # fmt: skip
    result = writer.save(job, memoryview(b"abc"), set())
    assert (result["kind"], result["failed_rank"]) == ("failed", 1)
    assert result["reason"].startswith("No such file or directory (")
