"""mounts and disk: shared filesystems are mounted and answer; the node's own disks have free space."""

from __future__ import annotations

import shlex

from slurm.health.check import Check, Expected

# With less free space than both of these, daemons begin to fail in misleading ways.
MIN_FREE_SHARE = 0.02
MIN_FREE_KB = 2 * 1024 * 1024


def judge_mounts(output: str, expected: Expected) -> list[str]:
    """Return the mounts that are missing."""
    mounted = set(output.split())
    return [f"{mount} is not mounted" for mount in expected.mounts if mount not in mounted]


def judge_disk(output: str, _expected: Expected) -> list[str]:
    """Return the disks of `df -P` that are nearly full."""
    problems = []
    for line in output.splitlines()[1:]:
        _device, size, _used, free, _share, mount = line.split(None, 5)
        if int(free) < min(MIN_FREE_KB, MIN_FREE_SHARE * int(size)):
            problems.append(f"{mount} has {int(free) // 1024} MB free of {int(size) // 1024}")
    return problems


def _write_script(expected: Expected) -> str:
    """Return a script that queries each server: `stat -f` hangs if the server is gone, which the time limit detects."""
    return "\n".join(
        f"if mountpoint -q {quoted}; then stat -f {quoted} >/dev/null || exit 1; echo {quoted}; fi"
        for quoted in map(shlex.quote, expected.mounts)
    )


# Not before jobs: a server that is slow for a moment would drain every node on which a requeued job is tried next.
MOUNTS = Check(
    "mounts",
    applies=lambda expected: bool(expected.mounts),
    command=_write_script,
    judge=judge_mounts,
    before_jobs=False,
)
DISK = Check(
    "disk",
    applies=lambda _: True,
    command=lambda _: "df -P / /var /tmp",
    judge=judge_disk,
    before_jobs=False,
)
