"""The machine that this process runs on: its available memory and its processor. Imports no torch."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def available_memory() -> int:
    """Return the bytes of memory that this process may still use, within the limits that Slurm has set."""
    return min([_machine_memory(), *_cgroup_memory()])


def list_memory_groups(cgroup: str, mountinfo: str) -> list[Path]:
    """Return the folders of the control groups whose memory limits bind a process, from its own group upwards.

    The texts are the files of the process in /proc. Groups are mounted at different places: v1 and v2 may both be
    there, and nodes of a local cluster have the v1 controllers elsewhere. A group that is not mounted cannot be read.
    """
    paths = [line.split(":", 2)[1:] for line in cgroup.splitlines()]
    groups = []
    for line in mountinfo.splitlines():
        # "36 35 0:32 ROOT PLACE rw,relatime [more fields] - TYPE SOURCE OPTIONS"; ROOT is the group mounted at PLACE.
        mount, _, filesystem = line.partition(" - ")
        root, place = mount.split()[3:5]
        kind, *_, options = filesystem.split()
        is_v1 = kind == "cgroup" and "memory" in options.split(",")
        if not is_v1 and kind != "cgroup2":
            continue
        for controllers, path in paths:
            is_same_tree = "memory" in controllers.split(",") if is_v1 else controllers == ""
            if is_same_tree and Path(path).is_relative_to(root):
                inner = Path(path).relative_to(root)
                groups += [Path(place) / part for part in (inner, *inner.parents)]
    return list(dict.fromkeys(groups))


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
    process = Path("/proc/self")
    for group in list_memory_groups((process / "cgroup").read_text(), (process / "mountinfo").read_text()):
        yield from _remaining(group, "memory.max", "memory.current")
        yield from _remaining(group, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _remaining(group: Path, limit: str, used: str) -> Iterable[int]:
    if not (group / limit).exists():
        return
    text = (group / limit).read_text().strip()
    if text.isdigit():
        yield max(int(text) - int((group / used).read_text()) + _reclaimable(group), 0)


def _reclaimable(group: Path) -> int:
    """Return the bytes of cached files: they count as used, but the kernel drops them when memory is needed."""
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(fields.get("total_inactive_file", fields["inactive_file"]))
