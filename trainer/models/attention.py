"""Causal attention of any number of local heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def split_heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(B, T, heads x head_dim) to (B, heads, T, head_dim); the number of heads follows from the input, so that a rank
    with a part of the projections has a part of the heads."""
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)
