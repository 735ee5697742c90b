"""`muster submit`: finding the job file, and listing those that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home
from muster.commands import submit
from muster.commands.job_files import describe_job_files, find_job_file

REPO = Path(__file__).parents[2]
HOME = Home.of({}, repo=REPO)


def test_job_file_is_searched_here_and_in_the_repository(tmp_path: Path) -> None:
    own = tmp_path / "own.sbatch"
    own.write_text("#!/bin/sh\n")
    assert find_job_file(str(own), HOME) == own
    assert find_job_file("slurm/jobs/smoke.sbatch", HOME).is_file()


def test_missing_job_file_is_rejected_with_those_that_exist() -> None:
    with pytest.raises(Stop, match=r"job: file slurm/jobs/none.sbatch does not exist") as stop:
        find_job_file("slurm/jobs/none.sbatch", HOME)
    assert stop.value.code == BAD_INPUT
    assert "\n  slurm/jobs/train.sbatch      trains on any number of nodes and any fabric\n" in stop.value.what


@pytest.mark.parametrize("job", [None, ""])
def test_submit_without_a_job_lists_those_that_exist(job: str | None) -> None:
    with pytest.raises(Stop, match="job: no job file is given") as stop:
        submit.submit("local", job, [])
    assert stop.value.code == BAD_INPUT
    assert "\n  slurm/jobs/smoke.sbatch " in stop.value.what


def test_folder_is_rejected_as_job_file(tmp_path: Path) -> None:
    for folder in (str(tmp_path), "slurm/jobs"):
        with pytest.raises(Stop, match=f"{folder} is a folder"):
            find_job_file(folder, HOME)


def test_every_job_file_says_what_it_does_in_a_short_line() -> None:
    jobs = describe_job_files(REPO)
    assert {"slurm/jobs/smoke.sbatch", "examples/own_model.sbatch"} <= set(jobs)
    width = max(map(len, jobs))
    lines = {name: f"    {name:{width}}  {what}" for name, what in jobs.items()}
    assert all(jobs.values())
    assert not [line for line in lines.values() if len(line) > 80]
