"""The processes of jobs on this node, as the kernel lists them: Slurm's own view can be wrong when it matters."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
USERS_GROUP = "/user@|[.]service/"
"""Pattern of cgroups that are not Slurm's: a user can create groups of any name below a systemd of their own, or below
a service that runs as them. For Python and awk, for a path with a slash at its end."""
JOB_GROUP = "/(([^/]*_)?slurmstepd[.]scope|slurm(_[^/]*)?/uid_[0-9]+)/job_([0-9]+)/"
"""Pattern of the cgroup of a job, or one below it; its fourth part is the job. With cgroup v2, Slurm's groups are below
a scope of its own, with v1 below a group per user; both can have the name of the node. Used as USERS_GROUP is."""
_STEP_PROGRAM = "slurmstepd"
# The title of a process that runs a step, such as `slurmstepd: [12.batch]`.
_STEP = re.compile(r"^slurmstepd: \[(\d+)\.")
# Signals that wait for the process, and for its main thread.
_PENDING = re.compile(r"^(?:SigPnd|ShdPnd):\t([0-9a-f]+)", re.MULTILINE)
_KILL_BIT = 1 << (signal.SIGKILL - 1)
_ROUNDS = 20
_PAUSE_S = 0.05


@dataclass(frozen=True)
class JobProcess:
    """A process that a job has started; Slurm's own ones, which belong to root, are none."""

    pid: int
    started: int
    """Time of its start in ticks since boot: with the pid, it identifies the process."""
    job: str
    name: str
    state: str
    """State as the kernel names it: R, S, D (waits in the kernel and cannot be killed), T (stopped), Z (ended)."""
    uid: int
    is_killed: bool = False
    """Whether it has been sent SIGKILL, which it has not obeyed yet."""
    thread: int = 0
    """Thread that lives on, and has this state, where the main one has ended; it may hang, and keep memory and GPUs."""
    is_in_cgroup: bool = True
    """Whether it is in its job's cgroup; if Slurm uses none, it is known as a descendant of slurmstepd."""

    @property
    def is_over(self) -> bool:
        return self.state in "ZX"


def list_job_processes(proc: Path = PROC) -> list[JobProcess]:
    """Return the processes of all jobs on this node."""
    entries = {entry.pid: entry for entry in _read_entries(proc)}
    return [
        JobProcess(
            entry.pid,
            entry.started,
            job,
            entry.name,
            entry.state,
            entry.uid,
            is_killed=entry.is_killed,
            thread=entry.thread,
            is_in_cgroup=bool(entry.job),
        )
        for entry in entries.values()
        if entry.uid != 0 and (job := entry.job or _find_job_of_ancestors(entry, entries))
    ]


def list_steps(proc: Path = PROC) -> set[str]:
    """Return the jobs that have steps on this node: each has a process of Slurm's own."""
    return {entry.step for entry in _read_entries(proc) if entry.step}


def signal_jobs(
    number: signal.Signals,
    jobs: Iterable[str],
    read: Callable[[], list[JobProcess]] = list_job_processes,
    sleep: Callable[[float], None] = time.sleep,
) -> set[str]:
    """Send a signal to all processes of jobs, and return the jobs that had any.

    A process may start another one before the signal reaches it, so they are listed until there is no new one.
    """
    jobs, reached = set(jobs), set()
    done: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        new = [p for p in read() if p.job in jobs and not p.is_over and (p.pid, p.started) not in done]
        if not new:
            break
        for process in new:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            done.add((process.pid, process.started))
            reached.add(process.job)
        sleep(_PAUSE_S)
    return reached


@dataclass(frozen=True)
class _Entry:
    pid: int
    parent: int
    started: int
    uid: int
    name: str
    state: str
    job: str
    """Job of its cgroup; empty outside of jobs, and where Slurm uses no cgroups."""
    step: str
    """Job of the step that this process runs, if it is slurmstepd."""
    is_killed: bool
    thread: int


def _read_entries(proc: Path) -> Iterator[_Entry]:
    for folder in proc.iterdir():
        if folder.name.isdigit():
            # The process may end at any time.
            with suppress(OSError, ValueError, IndexError):
                yield _read_entry(folder)


def _read_entry(folder: Path) -> _Entry:
    name, fields = _read_stat(folder)
    status = (folder / "status").read_text(errors="replace")
    uid = int(re.findall(r"^Uid:\t(\d+)", status, re.MULTILINE)[0])
    # Of a main thread that has ended, the kernel shows neither folder nor mounts, and with cgroup v1 no group.
    others = _list_threads(folder) if fields[0] in "ZX" and int(fields[17]) > 1 else []
    living = others[0] if others else folder
    masks = _PENDING.findall("".join([status, *((other / "status").read_text(errors="replace") for other in others)]))
    return _Entry(
        pid=int(folder.name),
        parent=int(fields[1]),
        started=int(fields[19]),
        uid=uid,
        name=name,
        state=_read_stat(living)[1][0],
        job=_find_job((living / "cgroup").read_text(errors="replace")),
        step=_read_step(folder) if uid == 0 and name == _STEP_PROGRAM else "",
        is_killed=any(int(mask, 16) & _KILL_BIT for mask in masks),
        thread=int(living.name) if others else 0,
    )


def _read_step(folder: Path) -> str:
    """Return the job of the step that a process runs, if it is slurmstepd: any program of root's may have its name.

    Other processes are never asked for their command line: the kernel reads it from their memory, for which it waits as
    long as one of their threads waits for a file server.
    """
    if os.readlink(folder / "exe").removesuffix(" (deleted)").rpartition("/")[2] != _STEP_PROGRAM:
        return ""
    step = _STEP.match((folder / "cmdline").read_text(errors="replace"))
    return step[1] if step else ""


def _list_threads(folder: Path) -> list[Path]:
    """Return the folders of the threads of a process that have not ended; those that wait in the kernel come first."""
    states = {}
    for thread in (folder / "task").iterdir():
        # A thread may end at any time.
        with suppress(OSError, IndexError):
            states[thread] = _read_stat(thread)[1][0]
    living = [thread for thread, state in states.items() if state not in "ZX"]
    return sorted(living, key=lambda thread: (states[thread] != "D", int(thread.name)))


def _read_stat(folder: Path) -> tuple[str, list[str]]:
    """Return the name of a process or thread, and the fields of its stat from the state on."""
    head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
    return head.partition("(")[2], tail.split()


def _find_job(groups: str) -> str:
    paths = [f"{line}/" for line in groups.splitlines()]
    matches = (re.search(JOB_GROUP, path) for path in paths if not re.search(USERS_GROUP, path))
    return next((match[4] for match in matches if match), "")


def _find_job_of_ancestors(entry: _Entry, entries: Mapping[int, _Entry]) -> str:
    seen = set()
    while entry.parent in entries and entry.pid not in seen:
        seen.add(entry.pid)
        entry = entries[entry.parent]
        if entry.step:
            return entry.step
    return ""
