"""What the words of a row (trainer and note) say about memory: which figure is told, the loss, the weights' width."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.layout import Loss, Told

DEVICE = re.compile(r"nvidia-smi|gpustat|nvml|\bthe device\b")
RESERVED = re.compile(r"\breserved\b")
ALLOCATED = re.compile(r"\ballocated\b|\bpeak active\b|mem-max-allocated")
FUSED = re.compile(r"liger|(cut|linear) cross[- ]entropy|fused linear|head and loss in (chunks|pieces)")
CHUNKED = re.compile(r"chunked (loss|cross[- ]entropy|ce\b)")
NARROW = re.compile(r"\bpure\b|\bfull[- ]bf16|bf16 (weights|params|parameters|masters|states)|no (fp32 )?masters")


@dataclass(frozen=True, slots=True)
class Said:
    told: Told = ""
    loss: Loss = "plain"
    weight_bytes: int = 0
    """0 where nothing is said."""


def said(words: str) -> Said:
    words = words.lower()
    return Said(_told(words), _loss(words), 2 if NARROW.search(words) else 0)


def _told(words: str) -> Told:
    if DEVICE.search(words):
        return "device"
    if RESERVED.search(words):
        return "reserved"
    return "peak" if ALLOCATED.search(words) else ""


def _loss(words: str) -> Loss:
    if FUSED.search(words):
        return "fused"
    return "chunked" if CHUNKED.search(words) else "plain"
