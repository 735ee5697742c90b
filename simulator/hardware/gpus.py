"""GPUs by name: data sheet figures (data/gpus.yaml) as the simulator's `Gpu`."""

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
SMALL_A100_GB = 48
LARGE_H100_GB = 90
"""The H100 of one large builder: HBM2e and 500 W (pytorch/torchtitan, its notes on performance)."""
PCIE_GB_S = 25.0
"""Between GPUs without NVLink, per direction: PCIe gen 4 as reached."""


@cache
def load_gpu(name: str, memory_gb: float = 0.0) -> Gpu:
    """`memory_gb` picks the variant where one name has several; KeyError names the GPUs that there are."""
    sheets = _sheets()
    key = name.lower()
    if key == "a100" and 0 < memory_gb <= SMALL_A100_GB:
        key = "a100-40gb"
    if key == "h100" and memory_gb >= LARGE_H100_GB:
        key = "h100-96gb"
    if key not in sheets:
        raise KeyError(f"gpu: {name!r}; allowed: {', '.join(sheets)}")
    sheet = sheets[key]
    found = Gpu(
        name=key,
        peak_tflops={dtype: float(sheet[dtype]) for dtype in DTYPES if dtype in sheet},
        memory_gb=float(sheet["memory_gb"]),
        memory_gb_s=float(sheet["memory_gb_s"]),
        multiprocessors=sheet["multiprocessors"],
        watts=float(sheet["watts"]),
        generation=sheet["generation"],
        reached=float(sheet["reached"]),
    )
    return replace(found, memory_gb=memory_gb) if memory_gb > 0 else found


def list_gpu_names() -> tuple[str, ...]:
    return tuple(_sheets())


def parse_gpu_name(words: str) -> str:
    """`NVIDIA H100-SXM5-80GB` is an h100."""
    plain = words.lower().strip()
    found = re.fullmatch(
        r"(?:nvidia[ _-])?(?:tesla[ _-])?([a-z]+\d+[a-z]?)(?:[ _-](?:sxm\d?|hgx|nvl\d*|hbm\d?e?|\d+ ?gb))*", plain
    )
    return found[1] if found and plain not in list_gpu_names() else plain


def link_gb_s(name: str) -> float:
    """Of one GPU to its neighbours in the node, per direction, off the data sheet."""
    return float(_sheets()[name.lower()]["nvlink"]) or PCIE_GB_S


@cache
def _sheets() -> dict[str, dict[str, Any]]:
    sheets: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return sheets
