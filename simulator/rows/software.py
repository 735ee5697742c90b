"""Parse what the name of a trainer and a note say about kernels, communication and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from simulator.layout import Loss, MemoryFigure

Framework = Literal["torch", "megatron", "deepspeed"]
MEGATRON = ("megatron", "nemo", "transformerengine", "transformer engine", "mcore", "nanotron", "picotron")
EARLY_FLASH = ("llm-foundry", "flash-attn 1", "flash attention 1", "triton flash")
"""Names of kernels older than FlashAttention 2; llm-foundry's tables are assumed to use its Triton kernels."""
OVERLAPS = ("megatron-core", "mcore", "nemo", "bridge", "overlap", "async tp", "asynctp")
"""Software that overlaps communication: NVIDIA's Megatron-Core recipes enable it."""
TORCH = ("fsdp", "ddp", "torch", "llm-foundry", "composer", "litgpt", "titan", "lightning", "accelerate")
DEVICE = re.compile(r"nvidia-smi|gpustat|nvml|\bthe device\b")
RESERVED = re.compile(r"\breserved\b")
ALLOCATED = re.compile(r"\ballocated\b|\bpeak active\b|mem-max-allocated")
FUSED = re.compile(r"liger|(cut|linear) cross[- ]entropy|fused linear|head and loss in (chunks|pieces)")
CHUNKED = re.compile(r"chunked (loss|cross[- ]entropy|ce\b)")
NARROW_WEIGHTS = re.compile(
    r"\bpure\b|\bfull[- ]bf16|bf16 (weights|params|parameters|masters|states)|no (fp32 )?masters"
)


@dataclass(frozen=True, kw_only=True)
class Software:
    """Kernels and communication of a run, as its software implies."""

    framework: Framework
    compiled: bool
    flash: bool
    pure: bool
    """Gradients are reduced in two bytes."""
    adapters: bool
    """Only adapters are trained (LoRA)."""
    early_flash: bool
    """Attention runs on kernels older than FlashAttention 2."""
    relays: bool
    """Pipelines run on DeepSpeed's engine."""
    overlaps: bool
    """Tensor- and data-parallel communication overlaps compute."""
    deduplicates: bool
    """Tokens are dispatched with DeepEP."""
    older: bool
    """The release predates sequence parallelism and flash attention."""
    sequence_parallel: bool
    """Default for tensor-parallel runs; Megatron-DeepSpeed never had it."""


def parse_software(name: str, note: str, *, narrow: bool, spread: bool, sharded: bool) -> Software:
    """Parse a trainer's name and note.

    `narrow` means fp16, a sign of older releases; `spread` tensor or pipeline parallelism; `sharded` ZeRO-3.
    """
    software = name.lower()
    framework = _framework(software, note, spread)
    older = narrow or "megatron-deepspeed" in software
    if sharded and "deepspeed" in software:
        framework = "deepspeed"
    return Software(
        framework=framework,
        compiled=_compiled(f"{software} {note.lower()}"),
        flash="flash" in software or not (older and framework != "torch"),
        pure="pure" in software,
        adapters="lora" in f"{software} {note.lower()}",
        early_flash=any(word in software for word in EARLY_FLASH),
        relays="megatron-deepspeed" in software,
        overlaps=not older and any(word in software for word in OVERLAPS) and "no overlap" not in software,
        deduplicates="deepep" in f"{software} {note.lower()}" or "bridge" in software,
        older=older,
        sequence_parallel=not older and "deepspeed" not in software,
    )


def _framework(text: str, note: str, spread: bool) -> Framework:
    if any(word in text for word in MEGATRON) or re.search(r"\bTE\b", f"{text.upper()} {note}"):
        return "megatron"
    if "deepspeed" in text:
        return "deepspeed"
    if any(word in text for word in TORCH):
        return "torch"
    return "megatron" if spread and not text else "torch"


def _compiled(text: str) -> bool:
    if "compile off" in text or "eager" in text or "no compile" in text:
        return False
    return "compile" in text or "llm.c" in text


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """What a text says about memory."""

    memory_figure: MemoryFigure = ""
    loss: Loss = "plain"
    weight_bytes: int = 0
    """Bytes of a weight; 0 if not given."""


def parse_memory_terms(text: str) -> MemoryTerms:
    """Parse the memory figure, the kind of loss and the width of weights that a text mentions."""
    text = text.lower()
    return MemoryTerms(_memory_figure(text), _loss(text), 2 if NARROW_WEIGHTS.search(text) else 0)


def _memory_figure(text: str) -> MemoryFigure:
    if DEVICE.search(text):
        return "device"
    if RESERVED.search(text):
        return "reserved"
    return "peak" if ALLOCATED.search(text) else ""


def _loss(text: str) -> Loss:
    if FUSED.search(text):
        return "fused"
    return "chunked" if CHUNKED.search(text) else "plain"
