"""Settings of how gradients travel between ranks, with types, defaults and meanings. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class CommunicationConfig:
    """Settings of how gradients travel between ranks."""

    compression: Literal["none", "topk", "randomk", "powersgd", "bf16", "fp8", "int8"] = setting(
        "ddp, hsdp: how gradients are compressed between the copies of the model; see compression.md", "none"
    )
    ratio: float = setting("topk, randomk: share of the gradient that each rank sends", 0.01, low=0.0001, high=0.5)
    smoothing: float = setting(
        "topk: share of the moving average of earlier steps in what the optimizer gets; with 0, AdamW takes too short "
        "steps, because elements arrive seldom and as large sums",
        0.8,
        low=0,
        high=0.99,
    )
    rank: int = setting("powersgd: rank of the matrices that are sent", 4, low=1)
    warmup_steps: int = setting("compression: steps at the start of the run whose gradients are sent whole", 0, low=0)
    pattern: Literal["backend", "auto", "ring", "tree", "hierarchical"] = setting(
        "ddp: algorithm that averages gradients: that of the backend (gloo, NCCL), or one of ours, for ranks on CPUs; "
        "auto chooses by times that were measured, or by size and nodes; see collectives.md",
        "backend",
    )
    inner_steps: int = setting(
        "ddp, hsdp: steps that each copy of the model takes on its own before the copies are averaged (Local SGD, "
        "DiLoCo); 0 averages gradients in every step; see engines.md",
        0,
        low=0,
    )
    outer_lr: float = setting(
        "inner_steps: share of the average change of the copies that is applied; 1 without momentum averages them",
        0.7,
        low=0.001,
        high=10,
    )
    outer_momentum: float = setting(
        "inner_steps: Nesterov's momentum of the average change; 0 for none", 0.9, low=0, high=0.99
    )
