"""A GPU that a rank cannot use is an error with its reason, not a reason to train on the CPU."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: in this one, memory that other tests have left could still serve a small tensor.
CHOOSE_ON_A_FULL_GPU = """
import torch
from trainer.life.cause import classify
from trainer.world import DeviceError, choose_device
torch.cuda.set_per_process_memory_fraction(0.0)
for requested in ("auto", "cuda", "cpu"):
    try:
        print(choose_device(requested, 0))
    except DeviceError as error:
        print(classify(error).name, error)
"""


def test_a_gpu_without_free_memory_is_named_with_the_reason_and_the_cpu_can_be_asked_for() -> None:
    child = subprocess.run([sys.executable, "-c", CHOOSE_ON_A_FULL_GPU], capture_output=True, text=True, check=True)
    *full, cpu = child.stdout.splitlines()
    assert cpu == "cpu"
    assert len(full) == 2, child.stdout
    for line in full:
        assert line.startswith("DEVICE GPU 0 on ")
        assert " cannot be used: " in line
        assert "out of memory" in line
        assert "nvidia-smi" in line
