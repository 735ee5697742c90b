"""What the name of a trainer, and a note beside it, say about kernels, habits and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from simulator.layout import Loss, MemoryFigure

Framework = Literal["torch", "megatron", "deepspeed"]
MEGATRON = ("megatron", "nemo", "transformerengine", "transformer engine", "mcore", "nanotron", "picotron")
EARLY_FLASH = ("llm-foundry", "flash-attn 1", "flash attention 1", "triton flash")
"""llm-foundry's tables are taken as made with its Triton kernels, those of the first FlashAttention: an inference."""
OVERLAPS = ("megatron-core", "mcore", "nemo", "bridge", "overlap", "async tp", "asynctp")
"""NVIDIA's recipes of Megatron-Core set its switches of overlap."""
TORCH = ("fsdp", "ddp", "torch", "llm-foundry", "composer", "litgpt", "titan", "lightning", "accelerate")
DEVICE = re.compile(r"nvidia-smi|gpustat|nvml|\bthe device\b")
RESERVED = re.compile(r"\breserved\b")
ALLOCATED = re.compile(r"\ballocated\b|\bpeak active\b|mem-max-allocated")
FUSED = re.compile(r"liger|(cut|linear) cross[- ]entropy|fused linear|head and loss in (chunks|pieces)")
CHUNKED = re.compile(r"chunked (loss|cross[- ]entropy|ce\b)")
NARROW = re.compile(r"\bpure\b|\bfull[- ]bf16|bf16 (weights|params|parameters|masters|states)|no (fp32 )?masters")


@dataclass(frozen=True, kw_only=True)
class Software:
    framework: Framework
    compiled: bool
    flash: bool
    pure: bool
    """Reductions in the narrow dtype."""
    adapters: bool
    """Only small added matrices learn (LoRA)."""
    early_flash: bool
    """Attention by the kernels of before FlashAttention 2."""
    relays: bool
    """Pipelines by deepspeed's engine."""
    overlaps: bool
    """Exchanges of tensor and data ranks behind products."""
    deduplicates: bool
    """DeepEP's dispatch of tokens."""
    older: bool
    """Of before sequence parallelism and flash attention."""
    sequence_parallel: bool
    """Where tensor ranks are, unless somebody says otherwise; nothing that Megatron-DeepSpeed ever had."""


def parse_software(name: str, note: str, *, narrow: bool, spread: bool, sharded: bool) -> Software:
    """`narrow`: fp16, by which one knows older releases; `spread`: layers or stages are split; `sharded`: ZeRO-3."""
    words = name.lower()
    framework = _framework(words, note, spread)
    older = narrow or "megatron-deepspeed" in words
    if sharded and "deepspeed" in words:
        framework = "deepspeed"
    return Software(
        framework=framework,
        compiled=_compiled(f"{words} {note.lower()}"),
        flash="flash" in words or not (older and framework != "torch"),
        pure="pure" in words,
        adapters="lora" in f"{words} {note.lower()}",
        early_flash=any(word in words for word in EARLY_FLASH),
        relays="megatron-deepspeed" in words,
        overlaps=not older and any(word in words for word in OVERLAPS) and "no overlap" not in words,
        deduplicates="deepep" in f"{words} {note.lower()}" or "bridge" in words,
        older=older,
        sequence_parallel=not older and "deepspeed" not in words,
    )


def _framework(words: str, note: str, spread: bool) -> Framework:
    if any(word in words for word in MEGATRON) or re.search(r"\bTE\b", f"{words.upper()} {note}"):
        return "megatron"
    if "deepspeed" in words:
        return "deepspeed"
    if any(word in words for word in TORCH):
        return "torch"
    return "megatron" if spread and not words else "torch"


def _compiled(words: str) -> bool:
    if "compile off" in words or "eager" in words or "no compile" in words:
        return False
    return "compile" in words or "llm.c" in words


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    told: MemoryFigure = ""
    loss: Loss = "plain"
    weight_bytes: int = 0
    """0 where nothing is said."""


def parse_memory_terms(words: str) -> MemoryTerms:
    words = words.lower()
    return MemoryTerms(_told(words), _loss(words), 2 if NARROW.search(words) else 0)


def _told(words: str) -> MemoryFigure:
    if DEVICE.search(words):
        return "device"
    if RESERVED.search(words):
        return "reserved"
    return "peak" if ALLOCATED.search(words) else ""


def _loss(words: str) -> Loss:
    if FUSED.search(words):
        return "fused"
    return "chunked" if CHUNKED.search(words) else "plain"
