"""The loss of language and image models alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F

IGNORED = -100


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in fp32, mean over the targets that count; 0 where none does."""
    flat = targets.flatten()
    total = F.cross_entropy(outputs.flatten(0, -2).float(), flat, ignore_index=IGNORED, reduction="sum")
    return total / (flat != IGNORED).sum().clamp(min=1)
