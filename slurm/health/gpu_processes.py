"""gpu-processes: only processes of jobs use the GPUs; what a user left outside of jobs keeps memory that jobs need."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cluster.user_ids import FIRST_UID
from slurm.health.admins import read_admins
from slurm.health.check import Check, Expected
from slurm.health.job_processes import PROC, JobProcess, list_job_processes
from slurm.health.unkillable import clean_text, summarize

_FIELDS = 4
# The `gpu` check reports an nvidia-smi that fails. `ps` exits with 1 if the processes have ended meanwhile.
_SCRIPT = """\
listed=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null)
pids=$(echo "$listed" | grep -E '^[0-9]+$' | sort -nu | paste -sd,)
if [ -n "$pids" ]; then ps -ww -o pid=,uid=,user:64=,comm= -p "$pids" || true; fi
"""


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the processes that use a GPU and belong to no job."""
    return list_strangers(output, list_job_processes(), read_admins())


def list_strangers(output: str, jobs: Collection[JobProcess], admins: Collection[str], proc: Path = PROC) -> list[str]:
    """Return the processes in `ps`'s lines that are not of jobs; admins and system users may work outside of jobs.

    Where Slurm uses no cgroups, nothing shows whether a user's session, or a daemon such as that of MPS, belongs to one
    of their jobs: all processes of users who run a step here are left out.

    `jobs` were read after these lines, so a process that has ended since may have been of a job, and is left out too.
    """
    pids = {str(process.pid) for process in jobs}
    spared = {str(process.uid) for process in jobs if not (process.is_in_cgroup or process.is_over)}
    rows = [line.split(None, _FIELDS - 1) for line in output.splitlines()]
    strangers = [
        row
        for row in rows
        if len(row) == _FIELDS
        and int(row[1]) >= FIRST_UID  # Services such as DCGM use GPUs as system users.
        and row[0] not in pids
        and row[1] not in spared
        and row[2] not in admins
    ]
    return summarize(
        [
            f"{clean_text(name)} (pid {pid} of {clean_text(user)}) uses a GPU and belongs to no job"
            for pid, _, user, name in strangers
            if (proc / pid).exists()
        ]
    )


CHECK = Check(
    "gpu-processes",
    about="no user's process outside of jobs uses a GPU",
    applies=lambda expected: expected.gpus > 0,
    command=lambda _: _SCRIPT,
    judge=judge,
    contexts=("prolog", "periodic"),
    limit_s=20.0,
    # It may be what the epilog has killed and the kernel does not let go, or a cron job or a service of a user, which
    # would be back after a reset, after a reboot and on another machine.
    blame="unknown",
    remedies=("rounds",),
)
