"""mounts and disk: shared filesystems are mounted and answer; the node's own disks have free space."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from slurm.health.check import Check, Expected

# With less free space than both of these, daemons begin to fail in misleading ways.
MIN_FREE_SHARE = 0.02
MIN_FREE_KB = 2 * 1024 * 1024
_DU_COLUMNS = 2
PRIVATE_FOLDERS = "/var/lib/slurm/private"
"""Folder of each node that holds the private folders of its jobs."""


def judge_mounts(output: str, expected: Expected) -> list[str]:
    """Return the mounts that are missing."""
    mounted = set(output.split())
    return [f"{mount} is not mounted" for mount in expected.mounts if mount not in mounted]


def judge_disk(output: str, _expected: Expected) -> list[str]:
    """Return the disks that are nearly full, and would be without the private folders of jobs."""
    return [str(disk) for disk in _parse_disks(output) if disk.is_full_with(disk.free_kb + disk.private_kb)]


def judge_job_disk(output: str, _expected: Expected) -> list[str]:
    """Return the disks that the private folders of jobs nearly fill; they are removed when the jobs end."""
    return [
        f"{disk}, and jobs use {disk.private_kb // 1024}"
        for disk in _parse_disks(output)
        if disk.is_full_with(disk.free_kb) and not disk.is_full_with(disk.free_kb + disk.private_kb)
    ]


@dataclass(frozen=True)
class _Disk:
    mount: str
    size_kb: int
    free_kb: int
    private_kb: int
    """Size of the private folders of jobs on it."""

    def is_full_with(self, free_kb: int) -> bool:
        return free_kb < min(MIN_FREE_KB, MIN_FREE_SHARE * self.size_kb)

    def __str__(self) -> str:
        return f"{self.mount} has {self.free_kb // 1024} MB free of {self.size_kb // 1024}"


def _parse_disks(output: str) -> list[_Disk]:
    """Parse what _LIST_DISKS prints: a row for each of three folders, and `size folder` if a disk is nearly full."""
    rows = [line.split(None, 5) for line in output.splitlines()[1:]]
    private_kb = sum(int(row[0]) for row in rows if len(row) == _DU_COLUMNS)
    mounts = {row[5]: row for row in rows if len(row) != _DU_COLUMNS}
    # The second row shows the disk that holds the private folders.
    var = [row[5] for row in rows if len(row) != _DU_COLUMNS][1]
    return [_Disk(mount, int(row[1]), int(row[3]), private_kb if mount == var else 0) for mount, row in mounts.items()]


# What is mounted is read from the kernel's list: most programs that look at a mount hang if its server is gone.
_QUERY_MOUNT = """\
query() {
  source=$(awk -v path="$1" '$2 == path { source = $1 " (" $3 ")" } END { print source }' /proc/self/mounts)
  [ -n "$source" ] || return 0
  echo "$1 from $source" >&2
  stat -f "$1" >/dev/null || exit 1
  echo "$1"
}
"""


def _write_script(expected: Expected) -> str:
    """Return a script that queries each server and first names it: if it is gone, the time limit ends the script."""
    return _QUERY_MOUNT + "".join(f"query {shlex.quote(mount)}\n" for mount in expected.mounts)


# Counting the files of jobs takes a while, so it is only done if a disk is nearly full.
_LIST_DISKS = f"""\
disks=$(df -P / /var /tmp) && echo "$disks" || exit 1
low='NR > 1 && $4 < {MIN_FREE_KB} && $4 < {MIN_FREE_SHARE} * $2 {{ low = 1 }} END {{ exit !low }}'
echo "$disks" | awk "$low" || exit 0
timeout 15 du -skx {PRIVATE_FOLDERS} 2>/dev/null || true
"""

MOUNTS = Check(
    "mounts",
    about="shared filesystems are mounted and answer",
    applies=lambda expected: bool(expected.mounts),
    command=_write_script,
    judge=judge_mounts,
    # Not before jobs: a server that is slow for a moment would drain every node on which a requeued job is tried next.
    contexts=("gate", "periodic"),
    limit_s=30.0,
    # The file server may be the cause.
    blame="unknown",
    remedies=("rounds", "replace"),
)
DISK = Check(
    "disk",
    about="the node's own disks have free space",
    applies=lambda _: True,
    command=lambda _: _LIST_DISKS,
    judge=judge_disk,
    contexts=("gate", "periodic"),
    limit_s=30.0,
    blame="node",
    remedies=("rounds", "replace"),
)
JOB_DISK = Check(
    "job-disk",
    about="the private folders of jobs leave free space on the node's disks",
    applies=lambda _: True,
    command=lambda _: _LIST_DISKS,
    judge=judge_job_disk,
    contexts=("periodic",),
    limit_s=30.0,
    blame="user",
    remedies=(),
)
