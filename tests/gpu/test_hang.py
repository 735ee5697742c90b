"""A GPU that hangs ends the run with an exit status, stacks, and a record of the collective that did not end."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.gpu_ranks import finish, start
from tests.gpu.stuck_gpu_rank import STUCK_STEP
from tests.gpu.test_two_ranks import read_collectives
from trainer.life.outcome import Code


def test_a_collective_that_never_ends_is_recorded(tmp_path: Path) -> None:
    statuses, output = finish(start(1, "tests.gpu.stuck_gpu_rank", str(tmp_path), "3"))
    assert statuses == [Code.HANG], output
    assert f"step {STUCK_STEP}, step" in output
    assert "in wait_for_gpu" in (tmp_path / "hang" / "rank-00000.txt").read_text()
    entries = read_collectives(tmp_path, 0)
    assert [entry["profiling_name"] for entry in entries] == ["nccl:all_reduce"] * STUCK_STEP
    assert [entry["state"] == "completed" for entry in entries] == [True] * (STUCK_STEP - 1) + [False]
    assert {tuple(entry["input_sizes"][0]) for entry in entries} == {(1 << 20,)}


def test_the_stack_of_a_step_that_hangs_is_written(tmp_path: Path) -> None:
    arguments = ["tiny-llama", "parallel.strategy=fsdp", "metrics.every=1", "watchdog.hang_s=5", "run.device=cuda"]
    folder = tmp_path / "run"
    statuses, output = finish(start(1, "tests.gpu.one_gpu_rank", *arguments, f"run.folder={folder}", HOLD="0:8"))
    assert statuses == [Code.HANG], output
    assert "in held_step" in (folder / "hang" / "rank-00000.txt").read_text()
    assert (folder / "hang" / "collectives-rank-0").stat().st_size > 0
