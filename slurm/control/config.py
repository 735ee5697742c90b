"""slurmctld itself: whether it answers, how it reloads its configuration, and the values that it uses."""

from __future__ import annotations

import re

SHOW_CONFIG = ("scontrol", "show", "config")
RECONFIGURE = ("scontrol", "reconfigure")
PING = "scontrol ping >/dev/null"
"""Shell command that succeeds if slurmctld answers."""


def read_seconds(config: str, key: str) -> float | None:
    """Return a duration in seconds from the output of SHOW_CONFIG; None if it is not there."""
    match = re.search(rf"^{key}\s*=\s*(\d+)", config, re.MULTILINE)
    return float(match[1]) if match else None


def read_release(config: str) -> str:
    """Return the release of slurmctld, such as 24.11, from the output of SHOW_CONFIG; empty if it is not there."""
    match = re.search(r"^SLURM_VERSION\s*=\s*(\d+\.\d+)", config, re.MULTILINE)
    return match[1] if match else ""


def read_next_job_id(config: str) -> int | None:
    """Return the id of the next job from the output of SHOW_CONFIG; None if it is not there."""
    match = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", config, re.MULTILINE)
    return int(match[1]) if match else None


def read_nodes(config: str, key: str) -> str:
    """Return a hostlist from the output of SHOW_CONFIG; empty if there is none."""
    match = re.search(rf"^{key}\s*=\s*(\S+)", config, re.MULTILINE)
    return match[1] if match and match[1] != "(null)" else ""
