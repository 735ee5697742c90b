"""Functions that several models share: causal attention and the training loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

IGNORED_TARGET = -100
"""Target value that the loss ignores, used for padding for example."""


def split_heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reshape (B, T, heads x head_dim) to (B, heads, T, head_dim).

    The number of heads follows from the input: under tensor parallelism a rank has only some of them.
    """
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Reshape (B, heads, T, head_dim) to (B, T, heads x head_dim)."""
    return x.transpose(1, 2).flatten(2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    """Return causal attention; several query heads may share one key and value head."""
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=is_grouped)


def compute_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in fp32, averaged over the targets that are not ignored; 0 if all are ignored."""
    flat = targets.flatten()
    total = F.cross_entropy(outputs.flatten(0, -2).float(), flat, ignore_index=IGNORED_TARGET, reduction="sum")
    return total / (flat != IGNORED_TARGET).sum().clamp(min=1)
