"""How a model is spread over GPUs, and what a layout must fulfil."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
PIPELINE_TUNED_MIN_GPUS = 1024
"""GPUs of a run whose pipeline somebody has seen to."""
Loss = Literal["plain", "compiled", "chunked", "fused"]
"""Of plain modules: torch's own, compiled into few passes, by pieces of the logits, or with the head by pieces."""
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
"""Of a layout that is planned, or that the project's own trainer runs."""
MemoryFigure = Literal["", "peak", "reserved", "device"]
"""What tensors held, what the allocator took, or what nvidia-smi shows; empty where the trainer's habit decides."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Names as in published tables; `dp * tp * pp * cp` is the number of GPUs, `ep` divides `dp * cp`."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    micro_batch: int = 1
    """Samples of one replica in one forward."""
    global_batch: int = 1
    """Samples of one optimizer step."""
    zero: Literal[0, 1, 2, 3] = 0
    shard: int = 0
    """Ranks that share what `zero` splits; 0 is all `dp * cp`, less is HSDP."""
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    dtype: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] = "bf16"
    weight_bytes: int = 4
    """Of the weights that the update works on: 4, or 2 where there are no masters."""
    gradient_bytes: int = 4
    """Of a gradient as it is reduced."""
    offload: bool = False
    compiled: bool = False
    framework: Literal["torch", "megatron", "deepspeed"] = "torch"
    """Whose kernels and habits: torch is plain modules with DDP or FSDP, megatron has fused kernels and a schedule."""
    adapters: bool = False
    """Only small added matrices learn (LoRA): no gradients of weights, no optimizer state."""
    trainer: Trainer = ""
    """Whose habits of memory: data/trainers.yaml."""
    loss: Loss = "plain"
    told: MemoryFigure = ""
    """The figure of memory that is reported."""
    early_flash: bool = False
    """Attention by the kernels of before FlashAttention 2."""
    regathers: bool = False
    """FSDP in a pipeline gathers weights for every micro-batch, as torch does unless told to do so once a step."""
    relays: bool = False
    """Stages hand over by deepspeed's pipeline engine."""
    overlaps: bool = False
    """Exchanges of tensor ranks run behind their products, and reductions behind all of backward."""
    deduplicates: bool = False
    """A token travels once to each rank that has experts of it (DeepEP), not once to each expert."""
    prefetch: int = 1
    bucket_mb: int = 25
    compression: float = 1.0
    """Gradient bytes sent per byte that there is."""

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def keeps_gathered(self) -> bool:
        """Weights that ZeRO-3 splits are gathered once in a step."""
        return self.pp > 1 and not self.regathers

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp)
