"""Memory of a command counts what its children have, and nothing of who measures."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.process_tree import used

HOLDS = "import time; held = bytearray(80 * 2**20); time.sleep(1)"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"


def test_children_of_children_are_counted() -> None:
    ours = bytearray(300 * 2**20)
    done = used(lambda: subprocess.run([sys.executable, "-c", STARTS], check=True))
    assert 80 < done.peak_mb < len(ours) / 2**20
    assert done.seconds >= 1
