"""Which machines a profile is of."""

from __future__ import annotations

import os
from typing import Any

import torch

from trainer import host
from trainer.world import World

SAME = ("device", "cpu", "cores", "threads")
"""What must be equal for two measurements to be of the same kind of machine."""


def identity(world: World) -> dict[str, Any]:
    on_gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if on_gpu else "cpu",
        "memory_gb": _gpu_gb(world.device) if on_gpu else _host_gb(),
        "multiprocessors": torch.cuda.get_device_properties(world.device).multi_processor_count if on_gpu else 1,
        "cpu": host.processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "backend": "nccl" if on_gpu else "gloo",
        "hosts": sorted({member.host for member in world.members}) or [world.host],
    }


def _gpu_gb(device: torch.device) -> float:
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)


def _host_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
