"""gpu-processes: whose processes on a GPU keep memory from jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.health.gpu_processes import list_strangers
from slurm.health.job_processes import JobProcess


@pytest.mark.fault(34)
def test_only_users_outside_of_jobs_are_strangers_on_a_gpu(tmp_path: Path) -> None:
    listed = (
        "   11    0 root     nvidia-persiste\n   12  998 dcgm     nv-hostengine\n  340 2001 alice    python\n"
        "  345 2001 alice    a train;ing\n  346 2002 bob      python\n  347 2001 alice    ended\n"
    )
    for pid in (11, 12, 340, 345, 346):
        (tmp_path / str(pid)).mkdir()
    job = JobProcess(340, 7, "12", "python", "S", 2001)
    strangers = list_strangers(listed, jobs=[job], admins=["root", "bob"], proc=tmp_path)
    assert strangers == ["a?train?ing (pid 345 of alice) uses a GPU and belongs to no job"]
    assert list_strangers("", jobs=(), admins=()) == []


def test_without_cgroups_users_who_run_a_step_here_are_no_strangers_on_a_gpu(tmp_path: Path) -> None:
    listed = "  345 2001 alice    nvidia-cuda-mps\n  346 2002 bob      python\n"
    for pid in (345, 346):
        (tmp_path / str(pid)).mkdir()
    job = JobProcess(340, 7, "12", "python", "S", 2001, is_in_cgroup=False)
    assert list_strangers(listed, jobs=[job], admins=(), proc=tmp_path) == [
        "python (pid 346 of bob) uses a GPU and belongs to no job"
    ]
