"""Who holds a run folder: job, attempt, host and process; and whether a new process may replace it at once."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

JOB_SCRIPT = "job script"
"""The launcher of an owner that holds the folder until the ranks of its job have started."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that holds a run folder, or wants to; the content of its file in the lock."""

    id: str
    host: str = ""
    pid: int = 0
    process: str = ""
    """Boot, process namespace and start of the process, so that another one with its number is not taken for it."""
    job: str = ""
    restart: int = 0
    """How often Slurm has restarted the job."""
    launcher: str = ""
    """The launch that started the ranks, which replaces its ranks itself; empty if it is unknown."""
    since: str = ""
    """When it took the folder, by its own clock; only people read it."""

    @classmethod
    def parse(cls, content: bytes) -> Owner:
        """Return the owner in a file of the lock; a file without one gives an owner of which nothing is known."""
        names = {field.name for field in fields(cls)}
        try:
            return cls(**{name: value for name, value in json.loads(content).items() if name in names})
        except (ValueError, TypeError, AttributeError):
            return cls(id="")

    def __str__(self) -> str:
        process = f"process {self.pid} on {self.host or 'an unknown host'}"
        return f"job {self.job} (attempt {self.restart + 1}), {process}" if self.job else process

    @property
    def stop_command(self) -> str:
        """The command that ends this owner."""
        return f"scancel {self.job}" if self.job else f"kill {self.pid} on {self.host}"

    def is_later_attempt(self, other: Owner) -> bool:
        """Return whether this is a later attempt of the other one's job."""
        return bool(self.job) and self.job == other.job and self.restart > other.restart


NOBODY = Owner(id="nobody")
"""The owner of a folder that was given back."""


def name_self(environment: Mapping[str, str] = os.environ, launcher: str = "") -> Owner:
    """Return this process as an owner, with a new random id."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "")
    return Owner(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        process=_identify_process(os.getpid()),
        job=environment.get("SLURM_JOB_ID", ""),
        restart=int(environment.get("SLURM_RESTART_COUNT") or 0),
        launcher=launcher or ("" if run_id == "none" else run_id),
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )


def explain_takeover(
    owner: Owner, successor: Owner, ended_jobs: tuple[str, ...], is_running: Callable[[Owner], bool | None]
) -> str:
    """Return why the successor may replace this owner at once, or an empty string if only time can tell.

    `is_running` returns None for a process of which this host knows nothing.
    """
    is_same_job = owner.job == successor.job
    if is_same_job and owner.job and owner.restart < successor.restart:
        return "it is an earlier attempt of the same job"
    if is_same_job and owner.restart == successor.restart:
        if owner.job and owner.launcher == JOB_SCRIPT:
            return "it holds the folder for the ranks of this job"
        if owner.launcher not in ("", JOB_SCRIPT) and owner.launcher == successor.launcher:
            return "the launcher has replaced its ranks"
    if owner.job in ended_jobs:
        return "its job has ended"
    if is_running(owner) is False:
        return "its process has ended"
    return ""


def is_running(owner: Owner) -> bool | None:
    """Return whether the process of an owner runs; None if it is not one of this host and process namespace."""
    place, _, start = owner.process.rpartition(" ")
    if not place or place != _identify_process(os.getpid()).rpartition(" ")[0]:
        return None
    return read_start(owner.pid) == start


def read_start(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if it has ended, even if its parent has not noticed."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if values[0] in ("Z", "X") else values[19]


def _identify_process(pid: int) -> str:
    """Return boot, process namespace and start time of a process; empty where the system does not tell them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {read_start(pid)}"
    except OSError:
        return ""
