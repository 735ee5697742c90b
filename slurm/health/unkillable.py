"""unkillable: processes of a step that Slurm could not kill. Slurm names the job; this names what hangs, and where.

If a step does not end after SIGKILL, slurmstepd runs `note_unkillable` (UnkillableStepProgram) and drains the node with
"Kill task failed". It does not if the step got SIGTERM before, as every cancelled job does: the job stays `completing`.
So each round also looks for processes that a SIGKILL has been waiting for since the round before. The check reports
both, and the node returns when these processes are gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slurm.health.check import Check, Expected
from slurm.health.job_processes import PROC, JobProcess, list_job_processes

RECORDS = "/run/muster/unkillable"
"""Folder of what could not be killed: a file per job, with a line `PID STARTED TEXT` per process."""
SHOWN = 3
"""Processes that a reason names; Slurm's tables show the first 200 characters of it."""
ROUND_SOON = (
    *("systemd-run", "--quiet", "--collect", "--on-active=3s", "--timer-property=AccuracySec=500ms"),
    "/etc/muster/health",
)
"""Command that starts a round after slurmstepd has drained the node: the reason must not wait for the next one."""

# The second field of stat, the name, may contain spaces. The fields after it begin with the state; the 18th of them is
# the number of threads, of which some may live although the main one has ended, and the 20th the start.
_SCRIPT = """\
for record in {records}/*; do
  if ! [ -f "$record" ]; then continue; fi
  alive=
  while read -r pid started text; do
    case $pid in '' | *[!0-9]*) continue ;; esac
    stat=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    # shellcheck disable=SC2086  # its fields
    set -- ${{stat##*) }}
    case $1 in Z | X) if [ "${{18}}" -le 1 ]; then continue; fi ;; esac
    if [ "${{20}}" != "$started" ]; then continue; fi
    alive=yes
    echo "$text"
  done <"$record"
  if [ -z "$alive" ]; then rm -f "$record"; fi
done
"""


def note_unkillable(job: str, folder: Path, proc: Path = PROC) -> list[str]:
    """Record the processes of a job that are still there, and return what is known of each."""
    left = [process for process in list_job_processes(proc) if process.job == job and not process.is_over]
    return _record(job, left, folder, proc)


def note_killed(folder: Path, proc: Path = PROC) -> None:
    """Record the processes that a SIGKILL was waiting for in the last round and still is; remember those of this round.

    A process that has only just been killed may take a moment to free its memory.
    """
    seen = folder.parent / f"{folder.name}-seen"
    before = set(_read(seen).splitlines())
    killed = {f"{p.pid} {p.started}": p for p in list_job_processes(proc) if p.is_killed and not p.is_over}
    if killed or before:
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.write_text("".join(f"{key}\n" for key in killed), encoding="ascii")
    hung = [process for key, process in killed.items() if key in before]
    for job in sorted({process.job for process in hung}):
        _record(job, [process for process in hung if process.job == job], folder, proc)


def _record(job: str, left: Sequence[JobProcess], folder: Path, proc: Path) -> list[str]:
    lines = [f"{process.pid} {process.started} {describe(process, proc)}" for process in left]
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder.parent / f"{folder.name}-{job}.new"
        new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        new.replace(folder / job)
    return lines


def describe(process: JobProcess, proc: Path = PROC) -> str:
    """Return where a process hangs: its job, state, function of the kernel, and the filesystem of its folder."""
    folder = proc / str(process.pid)
    parts = [f"pid {process.pid}"]
    if process.thread:
        folder = folder / "task" / str(process.thread)
        parts.append(f"thread {process.thread}")
    parts.append(f"state {process.state}")
    function = _read(folder / "wchan").strip()
    if function not in ("", "0"):
        parts.append(f"in {clean_text(function)}")
    with suppress(OSError):
        where = os.readlink(folder / "cwd")
        parts.append(f"on {find_mount(where, _read(folder / 'mountinfo'))}")
    return f"job {process.job}: {clean_text(process.name)} ({', '.join(parts)})"


def find_mount(path: str, mountinfo: str) -> str:
    """Return the mount point that contains a path, and its source and type if it is a filesystem of the network."""
    best, shown = "/", "/"
    for line in mountinfo.split("\n"):
        fields, _, source = line.partition(" - ")
        point = fields.split()[4] if len(fields.split()) > 4 else ""  # noqa: PLR2004
        if point and (path == point or path.startswith(f"{point.rstrip('/')}/")) and len(point) >= len(best):
            kind, device = map(clean_text, [*source.split(), "", ""][:2])
            best, shown = point, clean_text(point)
            if ":" in device or kind.startswith("fuse"):
                shown += f" ({kind} {device})"
    return shown


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the processes that still hang; many are counted."""
    lines = [line for line in output.splitlines() if line.strip()]
    return summarize(lines)


def summarize(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and the number of those that are not shown."""
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {more} more"] if more > 0 else [])]


def clean_text(text: str) -> str:
    """Return a text that users choose, such as the name of a process, without what would forge a line or a reason."""
    return re.sub(r"[^\w.:+@/\[\]-]", "?", text, flags=re.ASCII)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


CHECK = Check(
    "unkillable",
    about="no process of a step that Slurm could not kill is left",
    applies=lambda _: True,
    command=lambda _: _SCRIPT.format(records=RECORDS),
    judge=judge,
    contexts=("gate", "periodic"),
    limit_s=20.0,
    # A file server may be the cause.
    blame="unknown",
    remedies=("rounds", "replace"),
)
