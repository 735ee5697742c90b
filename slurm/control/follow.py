"""Following a job from the login node: its state whenever it changes, and its log as it grows."""

from __future__ import annotations

import shlex
from pathlib import Path

_SCRIPT = Path(__file__).with_name("follow_job.sh").read_text(encoding="utf-8")


def follow_job(job: str, offset: int) -> str:
    """Return the shell command that follows a job, printing its log from a byte offset."""
    return shlex.join(["bash", "-c", _SCRIPT, "follow", job, str(offset)])
