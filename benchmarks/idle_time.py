"""The time that the cores of this machine had nothing to do."""

from __future__ import annotations

import os
from pathlib import Path


def read_idle_s() -> float:
    """Return for how many seconds the cores were idle or waited for a disk since the start, added up."""
    _, _, _, _, idle, waiting, *_ = Path("/proc/stat").read_text().split("\n", maxsplit=1)[0].split()
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
