"""What the pre-flight says about the GPUs of a host."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.hosts.preflight.judge import judge_host
from tests.infra.targets.hosts.specs import changed, subject

GPUS = changed("groups", "gpu", "gpus", value={"count": 8, "kind": "real"})
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build"
MODELS = ("NVIDIA H100 80GB HBM3",) * 8

GPU_CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "as described": ({"gpus": 8, "gpu_models": MODELS, "driver": DRIVER.format("595.91.07")}, []),
    "too few": (
        {"gpus": 4},
        [
            (
                "host_gpus",
                "has 4 NVIDIA GPUs; groups.gpu.gpus.count is 8",
                "write `gpus: {count: 4}`, or leave the host out",
            )
        ],
    ),
    "no driver": (
        {"gpus": 8, "modules": frozenset({"nouveau"})},
        [
            (
                "host_driver",
                "has 8 NVIDIA GPUs, but not their driver; nouveau is loaded instead",
                "install the NVIDIA driver 580 or later, and restart",
            )
        ],
    ),
    "old driver": (
        {"gpus": 8, "gpu_models": MODELS, "driver": DRIVER.format("535.183.01")},
        [
            (
                "host_driver",
                "has NVIDIA driver 535.183.01; allowed: 580 or newer "
                "(the training environment has CUDA 13, which older branches cannot run)",
                "install a newer driver, and restart",
            )
        ],
    ),
    "a GPU that the driver has lost": (
        {"gpus": 8, "gpu_models": MODELS[:7], "driver": DRIVER.format("595.91.07")},
        [
            (
                "host_driver",
                "the driver has only 7 of 8 GPUs",
                "look for Xid errors in `dmesg`; a GPU may have failed",
            )
        ],
    ),
    "more than described": (
        {"gpus": 10, "gpu_models": (*MODELS, "x", "x"), "driver": DRIVER.format("595.91.07")},
        [
            (
                "host_gpus_unused",
                "has 10 NVIDIA GPUs, of which Slurm uses 8 (groups.gpu.gpus.count)",
                "write `gpus: {count: 10}` to use all",
            )
        ],
    ),
}


@pytest.mark.parametrize("title", GPU_CASES)
def test_gpus(title: str) -> None:
    facts, expected = GPU_CASES[title]
    assert [(p.code, p.message, p.fix) for p in judge_host(subject(data=GPUS, **facts))] == expected


def test_the_controller_needs_no_gpus() -> None:
    assert list(judge_host(subject("head", GPUS, gpus=0))) == []
