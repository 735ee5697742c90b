"""Whether the job that has just ended here failed by itself, so that the GPUs may be to blame."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Signals of Slurm and of people: cancelled, at the time limit, preempted.
_ENDED = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_SHELL_OFFSET = 128
# The title of a process that runs a step, such as `slurmstepd: [12.batch]`.
_STEP = re.compile(r"slurmstepd: \[(\d+)\.")
_LIMIT_S = 5.0
_STARTED = "job-started"


def is_failure(environment: Mapping[str, str]) -> bool:
    """Return whether a job failed, given the variables of the epilog; one that was cancelled did not."""
    status = environment.get("SLURM_JOB_EXIT_CODE", "")
    if not status.isdigit():
        return False
    if os.WIFSIGNALED(int(status)):
        return os.WTERMSIG(int(status)) not in _ENDED
    code = os.WEXITSTATUS(int(status))
    return code != 0 and code - _SHELL_OFFSET not in _ENDED


def is_alone(environment: Mapping[str, str]) -> bool:
    """Return whether no other job runs here, whose GPUs a diagnosis would disturb."""
    listed = subprocess.run(
        ["pgrep", "-af", "slurmstepd"], check=False, capture_output=True, text=True, timeout=_LIMIT_S
    )
    return find_jobs(listed.stdout) <= {environment.get("SLURM_JOB_ID", "")}


def note_start(folder: Path) -> None:
    """Remember that a job starts here."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STARTED).touch()


def has_started_since(folder: Path, at: float) -> bool:
    """Return whether a job has started since a time; it may have ended again."""
    path = folder / _STARTED
    return path.exists() and path.stat().st_mtime >= at


def find_jobs(processes: str) -> set[str]:
    """Return the jobs that have steps, given a list of processes; a step may outlive the end of its job a little."""
    return set(_STEP.findall(processes))
