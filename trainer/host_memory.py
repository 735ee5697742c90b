"""Memory of this machine that a process may still take, within the limits that Slurm set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def available() -> int:
    return min([_of_machine(), *_cgroup_limits()])


def _of_machine() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_limits() -> Iterable[int]:
    """What is left of this process's own memory limits: Slurm gives a job less than the node has."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            yield from _left(root / path.lstrip("/"), "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit: str, used: str) -> Iterable[int]:
    for place in [folder, *folder.parents]:
        if not (place / limit).exists():
            continue
        text = (place / limit).read_text().strip()
        if text.isdigit():
            yield max(int(text) - int((place / used).read_text()) + _reclaimable(place), 0)


def _reclaimable(place: Path) -> int:
    """Files read long ago count as used until somebody needs the room: the kernel drops them first."""
    fields = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    return int(fields.get("total_inactive_file", fields["inactive_file"]))
