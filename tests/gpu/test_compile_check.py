"""The ready gate's compiled step, on a real GPU with inductor and Triton."""

from __future__ import annotations

import subprocess
import sys


def test_a_gpu_node_compiles_a_step() -> None:
    # In a process of its own, as in the gate: the check switches the compilers' caches off.
    check = 'from trainer.compile_check import check_compile; check_compile("cuda", timeout_s=120)'
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
