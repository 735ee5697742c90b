"""The predictions of any model and the training loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

IGNORED_TARGET = -100
"""Target value that the loss ignores, used for padding for example."""


def get_logits(outputs: Any) -> torch.Tensor:
    """Return the predictions of a model that returns a tensor, or an object with `logits` as Hugging Face models do."""
    logits: torch.Tensor = getattr(outputs, "logits", outputs)
    return logits


def compute_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in fp32, averaged over the targets that are not ignored; 0 if all are ignored."""
    flat = targets.flatten()
    total = F.cross_entropy(outputs.flatten(0, -2).float(), flat, ignore_index=IGNORED_TARGET, reduction="sum")
    return total / (flat != IGNORED_TARGET).sum().clamp(min=1)
