"""The layout of a training run: how a model and its batch are spread over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
PIPELINE_TUNED_MIN_GPUS = 1024
"""GPUs from which a published run is assumed to have a tuned pipeline schedule, if its source does not say."""
Loss = Literal["plain", "compiled", "chunked", "fused", "in_head"]
"""Loss of unfused modules: torch's own, compiled, in chunks of the logits, or fused with the output head.

`in_head` is that of this project's trainer: logits exist for `chunk_tokens` tokens at a time.
"""
Trainer = Literal[
    "",
    "muster",
    "torchtitan-2024",
    "torchtitan",
    "kempnerforge",
    "bigscience",
    "megatron-deepspeed",
    "llm-foundry",
    "nanotron",
    "torchtune",
    "transformers",
    "internevo",
    "automodel",
    "unknown",
    "sparing",
]
OWN_TRAINERS: tuple[Trainer, ...] = ("", "muster")
"""Trainer names of planned layouts and of this project's own trainer."""
MemoryFigure = Literal["", "peak", "reserved", "device"]
"""Which memory figure a run reports: peak of tensors, reserved by the allocator, or used on the device (nvidia-smi).

Empty: the trainer's usual one.
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout in the terms of published tables: `dp * tp * pp * cp` GPUs; `ep` divides `dp * cp`."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b"
    micro_batch: int = 1
    """Samples per replica and forward pass."""
    global_batch: int = 1
    """Samples per optimizer step."""
    zero: Literal[0, 1, 2, 3] = 0
    shard: int = 0
    """Ranks over which `zero` shards; 0 means all `dp * cp`, fewer is HSDP."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    dtype: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] = "bf16"
    weight_bytes: int = 4
    """Bytes of a stored weight; Megatron's kernels have copies of two bytes besides."""
    master_bytes: int = 0
    """Bytes of the fp32 copy of a weight that the optimizer updates instead of a stored weight of two bytes."""
    moment_bytes: float | None = None
    """Bytes of the optimizer's moments per parameter; None means two moments as wide as a stored weight."""
    stored_gradient_bytes: int | None = None
    """Bytes of a gradient as it is summed over micro-batches; None means as wide as a stored weight."""
    gradient_bytes: int = 4
    """Bytes of a gradient when it is reduced."""
    offload: bool = False
    compiled: bool = False
    framework: Literal["torch", "megatron", "deepspeed"] = "torch"
    """Family of kernels and schedules: torch is unfused modules with DDP or FSDP, megatron has fused kernels."""
    adapters: bool = False
    """Train only adapters (LoRA): no gradients or optimizer state of the base weights."""
    trainer: Trainer = ""
    """Trainer whose memory behavior applies: data/trainers.yaml."""
    loss: Loss = "plain"
    chunk_tokens: int = 0
    """Tokens whose logits exist at a time with the loss `in_head`; 0 means a micro-batch."""
    memory_figure: MemoryFigure = ""
    """Memory figure that the run reports."""
    early_flash: bool = False
    """Attention runs on kernels older than FlashAttention 2."""
    regathers: bool = False
    """FSDP in a pipeline gathers weights for every micro-batch (torch's default) instead of once per step."""
    gathers_keys: bool = False
    """Context-parallel ranks gather all keys and values before attention instead of passing them around a ring."""
    relays: bool = False
    """Pipeline stages communicate through DeepSpeed's pipeline engine."""
    overlaps: bool = False
    """Tensor-parallel communication overlaps matrix products, and gradient reduction all of backward."""
    deduplicates: bool = False
    """A token is sent once to each rank with experts for it (DeepEP), not once per expert."""
    prefetch: int = 1
    """Layers whose weights ZeRO-3 gathers ahead."""
    bucket_mb: int = 25
    """Size of a DDP gradient bucket in MiB."""
    compression: float = 1.0
    """Gradient bytes sent per byte of gradients."""

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of the optimizer's state per parameter."""
        return (2 * self.weight_bytes if self.moment_bytes is None else self.moment_bytes) + self.master_bytes

    @property
    def summed_gradient_bytes(self) -> int:
        """Bytes of a gradient as it is summed over micro-batches."""
        return self.weight_bytes if self.stored_gradient_bytes is None else self.stored_gradient_bytes

    @property
    def keeps_gathered(self) -> bool:
        """Whether weights sharded by ZeRO-3 are gathered only once per step."""
        return self.pp > 1 and not self.regathers

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp)
