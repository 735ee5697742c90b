"""Functions that several models share: causal attention and the training loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

IGNORED_TARGET = -100
"""Target value that the loss ignores, used for padding for example."""
WINDOW_QUERIES = 1024
"""Queries per product of windowed attention: few enough for a small mask, enough to keep a GPU busy."""


def split_heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reshape (B, T, heads x head_dim) to (B, heads, T, head_dim).

    The number of heads follows from the input: under tensor parallelism a rank has only some of them.
    """
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Reshape (B, heads, T, head_dim) to (B, T, heads x head_dim)."""
    return x.transpose(1, 2).flatten(2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0, window: int = 0) -> torch.Tensor:
    """Return causal attention; several query heads may share one key and value head.

    With a window, each token sees that many tokens, itself included.
    """
    if window and window < q.shape[2]:
        return _attend_window(q, k, v, dropout, window)
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=is_grouped)


def get_logits(outputs: Any) -> torch.Tensor:
    """Return the predictions of a model that returns a tensor, or an object with `logits` as Hugging Face models do."""
    logits: torch.Tensor = getattr(outputs, "logits", outputs)
    return logits


def compute_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in fp32, averaged over the targets that are not ignored; 0 if all are ignored."""
    flat = targets.flatten()
    total = F.cross_entropy(outputs.flatten(0, -2).float(), flat, ignore_index=IGNORED_TARGET, reduction="sum")
    return total / (flat != IGNORED_TARGET).sum().clamp(min=1)


def _attend_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, window: int) -> torch.Tensor:
    """Return attention within a window, some queries at a time, each with the keys that they can see.

    Operations and masks grow with length x window instead of length squared. The first queries see all tokens before
    them and need no mask.
    """
    parts = [attend(q[:, :, :window], k[:, :, :window], v[:, :, :window], dropout)]
    # Of torch's fast kernels for CUDA, the one that takes a mask does not take grouped heads.
    k, v = (_repeat_heads(x, q.shape[1]) for x in (k, v))
    for start in range(window, q.shape[2], WINDOW_QUERIES):
        end = min(start + WINDOW_QUERIES, q.shape[2])
        queries, keys, values = q[:, :, start:end], k[:, :, start - window : end], v[:, :, start - window : end]
        # Query r is at position window + r of the keys: it sees those after r, up to itself.
        mask = torch.ones(end - start, window + end - start, dtype=torch.bool, device=q.device).tril(window).triu(1)
        parts.append(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout))
    return torch.cat(parts, dim=2)


def _repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a copy of each key or value head for every query head that shares it."""
    return x.unsqueeze(2).expand(-1, -1, heads // x.shape[1], -1, -1).flatten(1, 2)
