"""The estimate of the first save's duration, and the stop before a time limit that depends on it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.trainer.launch import SMALL_LLAMA, checkpoint_steps, events, outcome
from trainer.__main__ import main
from trainer.checkpoint import checkpoints, probe
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.probe import estimate_save_s
from trainer.life.outcome import Code

MB = 1 << 20


@pytest.mark.parametrize(
    ("mb_per_s", "size_mb", "expected_s", "parts_mb"),
    [(1000, 96_000, 96.0, [4, 64]), (2, 96_000, 48_000.0, [4]), (1000, 2, 0.002, [2]), (1000, 0, 0.0, [])],
    ids=["fast", "slow", "small", "nothing"],
)
def test_a_part_is_written_and_the_time_of_all_extrapolated(
    mb_per_s: float, size_mb: int, expected_s: float, parts_mb: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def write(_path: Path, size: int) -> float:
        parts.append(size // MB)
        return size / MB / mb_per_s

    monkeypatch.setattr(probe, "_time_write", write)
    assert estimate_save_s(Path("run"), size_mb * MB, RankGroup(0, 1)) == pytest.approx(expected_s)
    assert parts == parts_mb


def test_the_probe_writes_to_the_disk_and_leaves_nothing(tmp_path: Path) -> None:
    assert 0 < estimate_save_s(tmp_path, 3 * MB + 1, RankGroup(0, 1)) < 60
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_has_no_estimate(tmp_path: Path) -> None:
    assert estimate_save_s(tmp_path / "missing", MB, RankGroup(0, 1)) == 0.0


def test_a_run_stops_early_enough_for_a_slow_first_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 600 s left and a save of 400 s, the usual margin of a minute would be too late."""
    now, folder = int(time.time()), tmp_path / "run"
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(now - 2000))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(now + 600))
    monkeypatch.setattr(checkpoints, "estimate_save_s", lambda *_: 400.0)
    settings = [*SMALL_LLAMA, "steps=2000", "checkpoint.every=0", f"run.folder={folder}"]
    assert main(settings) == Code.REQUEUE
    ended = outcome(folder)
    assert ended["reason"] == "time limit"
    assert checkpoint_steps(folder) == [ended["step"]]
    assert events(folder, "save_estimated")[0]["seconds"] == 400.0


def test_a_save_that_takes_longer_than_the_warning_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(checkpoints, "estimate_save_s", lambda *_: 400.0)
    settings = [*SMALL_LLAMA, "steps=6", "checkpoint.every=0", f"run.folder={tmp_path}", "stop.warning_s=300"]
    assert main(settings) == Code.FINISHED
    (slow,) = events(tmp_path, "slow_stop")
    assert "and 400 s for the save, but the cluster warns 300 s ahead (stop.warning_s)" in slow["message"]
