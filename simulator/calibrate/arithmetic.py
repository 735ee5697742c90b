"""Measure the work of a single rank: matrix products by shape, memory copies, and the host time of a launch."""

from __future__ import annotations

from typing import Any

import torch

from simulator.calibrate.ranks import Ranks
from trainer.precision import DTYPES

CPU_SHAPES = (
    (128, 64, 64), (512, 64, 64), (512, 128, 64), (512, 64, 128), (64, 64, 512), (512, 320, 64), (512, 64, 320),
    (128, 128, 128), (512, 128, 128), (512, 384, 128), (512, 128, 384), (128, 384, 512), (128, 128, 512),
    (256, 256, 256), (512, 512, 256), (512, 256, 256), (256, 1024, 256), (256, 256, 1024),
    (64, 688, 256), (64, 256, 688), (256, 688, 64),
)  # fmt: skip
"""Rows, columns and inner dimension of each product."""
GPU_SHAPES = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (4096, 1024, 4096), (4096, 4096, 1024), (1024, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336),
    (14336, 4096, 8192), (8192, 2048, 2048), (2048, 2048, 8192), (8192, 32768, 4096), (16384, 4096, 4096),
)  # fmt: skip
CPU_DTYPES, GPU_DTYPES = ("fp32",), ("fp32", "bf16", "fp16")
COPY_BYTES = {"cpu": 2**25, "cuda": 2**30}
"""Bytes to copy: far more than any cache holds."""


def measure_products(ranks: Ranks) -> dict[str, list[list[float]]]:
    """Return rows, columns, inner dimension and seconds of each product, by dtype."""
    on_gpu = ranks.device.type == "cuda"
    shapes, dtypes = (GPU_SHAPES, GPU_DTYPES) if on_gpu else (CPU_SHAPES, CPU_DTYPES)
    return {dtype: [[*shape, _time_product(ranks, shape, DTYPES[dtype])] for shape in shapes] for dtype in dtypes}


def measure_copy_gb_s(ranks: Ranks) -> float:
    """Return the bandwidth of a copy: bytes read plus bytes written, per second."""
    size = COPY_BYTES[ranks.device.type]
    source = torch.ones(size // 4, device=ranks.device)
    target = torch.empty_like(source)
    return 2 * size / ranks.time_alone(lambda: target.copy_(source)) / 1e9


def measure_launch_us(ranks: Ranks) -> float:
    """Return the microseconds of an operation on a single element."""
    element = torch.zeros(1, device=ranks.device)
    return 1e6 * ranks.time_alone(lambda: element.add_(1.0))


def _time_product(ranks: Ranks, shape: tuple[int, int, int], dtype: Any) -> float:
    rows, columns, inner = shape
    left = torch.rand(rows, inner, device=ranks.device).to(dtype)
    right = torch.rand(inner, columns, device=ranks.device).to(dtype)
    out = torch.empty(rows, columns, device=ranks.device, dtype=dtype)
    return ranks.time_alone(lambda: torch.mm(left, right, out=out))
