"""The kind of processor, as the kernel calls it: times of a run on CPUs mean nothing without it. No torch."""

from __future__ import annotations

import platform
from pathlib import Path

INFO = Path("/proc/cpuinfo")


def name(info: Path = INFO) -> str:
    """`AMD EPYC 7R13 Processor`; only the architecture where the kernel does not say, as on Arm."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, "") or platform.machine()
