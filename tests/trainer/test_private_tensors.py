"""Tensors that belong to one rank of an engine: saved by each rank, restored if the layout is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.ranks import on_ranks
from trainer.private_tensors import describe_left_out

TARGET = "tests.trainer.private_rank:save_and_load"
SAVED = ["model.x", "private.00000.residual.x", "private.00000.query4.x", "private.00001.residual.x"]
OTHER_LAYOUT = "not restored, because the ranks are laid out differently now: "
NOT_USED = "not restored, because this run does not use them: "


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


@pytest.mark.parametrize(
    ("saved", "loaded", "is_same_layout", "expected"),
    [
        (SAVED, SAVED[:3], True, ""),
        (SAVED, SAVED[:2], True, NOT_USED + "query4.x"),
        (SAVED, SAVED[:1], True, NOT_USED + "residual.x, query4.x"),
        (SAVED, SAVED[:1], False, OTHER_LAYOUT + "residual.x, query4.x"),
        (SAVED[:1], SAVED[:1], False, ""),
    ],
)
def test_what_is_left_out_is_decided_by_the_checkpoint(
    saved: list[str], loaded: list[str], is_same_layout: bool, expected: str
) -> None:
    assert describe_left_out(saved, 0, loaded, is_same_layout=is_same_layout) == expected
