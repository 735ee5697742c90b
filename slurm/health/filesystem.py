"""filesystem: shared filesystems are mounted and answer; the node's own disks have room."""

from __future__ import annotations

import shlex

from slurm.health.check import Check, Expected

# With less free space than both of these daemons begin to fail in ways that look like something else.
LEAST_SHARE = 0.02
LEAST_KB = 2 * 1024 * 1024


def judge_mounts(output: str, expected: Expected) -> list[str]:
    mounted = set(output.split())
    return [f"{mount} is not mounted" for mount in expected.mounts if mount not in mounted]


def judge_disk(output: str, _expected: Expected) -> list[str]:
    """`df -P`: Filesystem 1024-blocks Used Available Capacity Mounted-on."""
    problems = []
    for line in output.splitlines()[1:]:
        _device, size, _used, free, _share, mount = line.split(None, 5)
        if int(free) < min(LEAST_KB, LEAST_SHARE * int(size)):
            problems.append(f"{mount} has {int(free) // 1024} MB left of {int(size) // 1024}")
    return problems


def _ask(expected: Expected) -> str:
    """`stat -f` asks the server: where that is gone nothing answers, and the time limit makes it a problem."""
    return "\n".join(
        f"if mountpoint -q {quoted}; then stat -f {quoted} >/dev/null || exit 1; echo {quoted}; fi"
        for quoted in map(shlex.quote, expected.mounts)
    )


MOUNTS = Check("mounts", applies=lambda expected: bool(expected.mounts), command=_ask, judge=judge_mounts)
DISK = Check(
    "disk",
    applies=lambda _: True,
    command=lambda _: "df -P / /var /tmp",
    judge=judge_disk,
    before_jobs=False,
)
