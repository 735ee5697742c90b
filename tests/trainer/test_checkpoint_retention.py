"""The newest checkpoints and the best one are kept, all others are removed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.trainer.checkpoint_state import make_state, save_and_wait
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.folder import MANIFEST
from trainer.checkpoint.manifest import Manifest, encode_manifest, read_manifest
from trainer.checkpoint.retention import find_best, select_removable

NAN = float("nan")


@pytest.mark.parametrize(
    ("metrics", "newest", "keep", "best", "discarded", "removed"),
    [
        ({1: None}, 1, 1, "", [], []),
        ({1: None, 2: None}, 2, 2, "", [], []),
        ({1: None, 2: None, 3: None}, 3, 2, "", [], [1]),
        ({1: 0.5, 2: 0.9, 3: 0.8, 4: 0.7}, 4, 2, "loss", [], [2]),
        ({1: 0.5, 2: 0.9, 3: 0.8, 4: 0.7}, 4, 1, "accuracy", [], [1, 3]),
        ({1: NAN, 2: None, 3: 0.8, 4: 0.9, 5: 1.0}, 5, 1, "loss", [], [1, 2, 4]),
        # Of two equally good ones, the later is kept.
        ({1: 0.5, 2: 0.5, 3: 0.8}, 3, 1, "loss", [], [1]),
        # After a rollback to 2, a later step from before the rollback is removed.
        ({1: None, 2: None, 5: None, 3: None}, 3, 2, "", [5], [1, 5]),
        # A damaged 300 was skipped; 250 is the only good one.
        ({250: None, 300: None}, 250, 1, "", [300], [300]),
        # Nobody has read 300 and found it damaged.
        ({200: None, 250: None, 300: None}, 250, 1, "", [], [200]),
        # Steps that were discarded and written again since are like any other.
        ({1: None, 2: None, 3: None}, 3, 2, "", [2, 3], [1]),
    ],
)
def test_select_removable(
    metrics: dict[int, float | None], newest: int, keep: int, best: str, discarded: list[int], removed: list[int]
) -> None:
    assert select_removable(metrics, newest, keep, best, discarded) == removed


def test_only_values_of_the_same_figure_are_compared(tmp_path: Path) -> None:
    """A resumed run may keep the best by another figure; an accuracy of 0.5 is no better loss than one of 1."""
    by_accuracy = Checkpoints(tmp_path, keep=1, best="accuracy")
    save_and_wait(by_accuracy, 1, make_state(), metric=0.5)
    by_accuracy.close()
    assert find_best(tmp_path, "accuracy") == tmp_path / "step-00000001"
    assert find_best(tmp_path, "loss") is None
    by_loss = Checkpoints(tmp_path, keep=1, best="loss")
    for step, loss in enumerate([1.0, 2.0, 3.0], start=2):
        save_and_wait(by_loss, step, make_state(), metric=loss)
    by_loss.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]
    assert find_best(tmp_path, "loss") == tmp_path / "step-00000002"


def test_a_manifest_without_the_name_of_its_figure_is_never_the_best(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-00000001"
    checkpoint.mkdir()
    body = json.loads(encode_manifest(Manifest(1, 1, "token", 0.5, {}, "loss")))
    (checkpoint / MANIFEST).write_bytes(encode_manifest(Manifest(1, 1, "token", 0.5, {}, "loss")))
    assert find_best(tmp_path, "loss") == checkpoint
    del body["metric_name"], body["check"]
    check = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (checkpoint / MANIFEST).write_text(json.dumps({**body, "check": check}))
    assert read_manifest(checkpoint).metric == 0.5
    assert find_best(tmp_path, "loss") is None


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, best="loss")
    for step, loss in enumerate([3.0, 1.0, 2.0, 2.5, 2.2], start=1):
        save_and_wait(checkpoints, step, make_state(), metric=loss)
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000004", "step-00000005"]
