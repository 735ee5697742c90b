"""The machine that this process runs on: its available memory and its processor. Imports no torch."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Return the bytes of memory that this process may still use, within the limits that Slurm has set."""
    return min([_machine_memory(), *_cgroup_memory()])


def processor_name(info: Path = CPU_INFO) -> str:
    """Return the processor's name, such as `AMD EPYC 7R13 Processor`, or the architecture if the kernel has no name.

    It is recorded because the times of a run on CPUs mean nothing without it.
    """
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()


def _machine_memory() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_memory() -> Iterable[int]:
    """Yield the bytes left under each memory limit of this process; Slurm may grant a job less than the node has."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _remaining(_CGROUPS / path.lstrip("/"), "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder = _CGROUPS / "memory" / path.lstrip("/")
            yield from _remaining(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _remaining(folder: Path, limit: str, used: str) -> Iterable[int]:
    for group in [folder, *folder.parents]:
        if not (group / limit).exists():
            continue
        text = (group / limit).read_text().strip()
        if text.isdigit():
            yield max(int(text) - int((group / used).read_text()) + _reclaimable(group), 0)


def _reclaimable(group: Path) -> int:
    """Return the bytes of cached files: they count as used, but the kernel drops them when memory is needed."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(fields.get("total_inactive_file", fields["inactive_file"]))
