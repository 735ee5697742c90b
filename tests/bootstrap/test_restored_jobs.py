"""slurmctld starts again after it was killed before it had saved its whole state for the first time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bootstrap.steps.restored_jobs import DROP_IN, FORGET_FIRST_START, STATE, UNITS
from tests.bootstrap.clusters import desired


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ("", ""),
        ("clustername", ""),
        ("clustername job_state", "job_state"),
        ("assoc_usage.new clustername", "assoc_usage.new"),
        ("assoc_usage clustername job_state", "assoc_usage clustername job_state"),
        ("assoc_usage.old clustername", "assoc_usage.old clustername"),
    ],
)
def test_a_controller_that_never_saved_its_whole_state_forgets_its_first_start(
    files: str, left: str, tmp_path: Path
) -> None:
    for name in files.split():
        (tmp_path / name).touch()
    subprocess.run(["sh", "-ec", FORGET_FIRST_START.replace(STATE, str(tmp_path))], check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == left.split()


def test_it_runs_before_slurmctld_in_the_folder_of_its_state() -> None:
    assert f"[Service]\nExecStartPre=/bin/sh -c '{FORGET_FIRST_START}'\n" in UNITS[DROP_IN]
    assert f"StateSaveLocation={STATE}" in desired().slurm_files["/etc/slurm/slurm.conf"].content.splitlines()
