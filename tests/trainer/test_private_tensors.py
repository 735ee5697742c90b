"""Tensors that belong to one rank of an engine: saved by each rank, restored if the layout is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.ranks import on_ranks

TARGET = "tests.trainer.private_rank:save_and_load"


def test_each_rank_gets_its_own_tensor_back(tmp_path: Path) -> None:
    results = on_ranks(TARGET, ranks=2, folder=str(tmp_path), before="ddp", after="ddp")
    assert [result["left_over"] for result in results] == [[1.0] * 3, [2.0] * 3]
    assert all((result["step"], result["notes"]) == (1, []) for result in results)


@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_another_layout_starts_without_them_and_says_so(before: str, after: str, tmp_path: Path) -> None:
    for result in on_ranks(TARGET, ranks=2, folder=str(tmp_path), before=before, after=after):
        assert (result["left_over"], result["step"]) == ([0.0] * 3, 1)
        assert result["notes"] == ["not restored, because the ranks are laid out differently now: left_over"]
        assert result["later_notes"] == []
