"""Measured memory of a command includes its children and excludes the measuring process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.process_tree import measure_usage

ALLOCATES_80_MB = "import time; held = bytearray(80 * 2**20); time.sleep(1)"
STARTS_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALLOCATES_80_MB!r}])"


def test_grandchildren_are_counted() -> None:
    own_memory = bytearray(300 * 2**20)
    usage = measure_usage(lambda: subprocess.run([sys.executable, "-c", STARTS_CHILD], check=True))
    assert 80 < usage.peak_mb < len(own_memory) / 2**20
    assert usage.seconds >= 1
