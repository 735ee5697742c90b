"""Look up GPUs by name in the data sheets (data/gpus.yaml)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simulator.hardware.system import Gpu

DATA = Path(__file__).parents[1] / "data" / "gpus.yaml"
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
SMALL_A100_MAX_GB = 48
"""An A100 with up to this much memory is the 40 GB variant."""
LARGE_H100_MIN_GB = 90
"""An H100 with this much memory is the 96 GB variant of one builder: HBM2e, 500 W (torchtitan's performance notes)."""
PCIE_GB_S = 25.0
"""Rate between GPUs without NVLink, per direction: what PCIe gen 4 reaches."""


@cache
def load_gpu(name: str, memory_gb: float = 0.0) -> Gpu:
    """Return the GPU of that name; `memory_gb` selects a variant. Raise KeyError with the allowed names."""
    sheets = _sheets()
    key = name.lower()
    if key == "a100" and 0 < memory_gb <= SMALL_A100_MAX_GB:
        key = "a100-40gb"
    if key == "h100" and memory_gb >= LARGE_H100_MIN_GB:
        key = "h100-96gb"
    if key not in sheets:
        raise KeyError(f"gpu: {name!r}; allowed: {', '.join(sheets)}")
    sheet = sheets[key]
    gpu = Gpu(
        name=key,
        peak_tflops={dtype: float(sheet[dtype]) for dtype in DTYPES if dtype in sheet},
        memory_gb=float(sheet["memory_gb"]),
        memory_gb_s=float(sheet["memory_gb_s"]),
        multiprocessors=sheet["multiprocessors"],
        watts=float(sheet["watts"]),
        generation=sheet["generation"],
        reached=float(sheet["reached"]),
    )
    return replace(gpu, memory_gb=memory_gb) if memory_gb > 0 else gpu


def list_gpu_names() -> tuple[str, ...]:
    """Return the names of all GPUs with a data sheet."""
    return tuple(_sheets())


def parse_gpu_name(text: str) -> str:
    """Return the data sheet's name of a GPU: `NVIDIA H100-SXM5-80GB` is h100."""
    name = text.lower().strip()
    match = re.fullmatch(
        r"(?:nvidia[ _-])?(?:tesla[ _-])?([a-z]+\d+[a-z]?)(?:[ _-](?:sxm\d?|hgx|nvl\d*|hbm\d?e?|\d+ ?gb))*", name
    )
    return match[1] if match and name not in list_gpu_names() else name


def link_gb_s(name: str) -> float:
    """Return the data sheet's rate from one GPU to its neighbors in the node, in GB/s per direction."""
    return float(_sheets()[name.lower()]["nvlink"]) or PCIE_GB_S


@cache
def _sheets() -> dict[str, dict[str, Any]]:
    sheets: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return sheets
