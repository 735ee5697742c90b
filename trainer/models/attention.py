"""Causal attention, of whole sequences or of the part that a rank holds."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trainer.models.attention_mask import AttentionMask
from trainer.models.sequence_part import SequencePart

WINDOW_QUERIES = 1024
"""Queries per product of windowed attention: few enough for a small mask, enough to keep a GPU busy."""


def attend(  # noqa: PLR0913
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    dropout: float = 0.0,
    window: int = 0,
    mask: AttentionMask | None = None,
) -> torch.Tensor:
    """Return causal attention; several query heads may share one key and value head.

    If there are fewer queries than keys, they are those of the last tokens. With a window, each token sees that many
    tokens, itself included. A mask says all that a token sees.
    """
    if mask is not None and mask.part is not None:
        return _attend_part(q, k, v, dropout, window, mask, mask.part)
    if mask is not None and mask.blocks is not None:
        from trainer.models.document_blocks import attend_blocks  # noqa: PLC0415 - as in attention_mask

        return attend_blocks(q, k, v, mask.blocks)
    if mask is not None and mask.visible is not None:
        k, v = (_repeat_heads(x, q.shape[1]) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.visible, dropout_p=dropout)
    if window and window < k.shape[2]:
        return _attend_window(q, k, v, dropout, window)
    if q.shape[2] < k.shape[2]:
        return _attend_last(q, k, v, dropout)
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=is_grouped)


def split_heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reshape (B, T, heads x head_dim) to (B, heads, T, head_dim).

    The number of heads follows from the input: under tensor parallelism a rank has only some of them.
    """
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Reshape (B, heads, T, head_dim) to (B, T, heads x head_dim)."""
    return x.transpose(1, 2).flatten(2)


def _attend_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, window: int) -> torch.Tensor:
    """Return attention within a window, some queries at a time, each with the keys that they can see.

    Operations and masks grow with length x window instead of length squared. The first queries see all tokens before
    them and need no mask.
    """
    first = k.shape[2] - q.shape[2]
    unlimited = max(0, window - first)
    parts = [attend(q[:, :, :unlimited], k[:, :, :window], v[:, :, :window], dropout=dropout)] if unlimited else []
    # Of torch's fast kernels for CUDA, the one that takes a mask does not take grouped heads.
    k, v = (_repeat_heads(x, q.shape[1]) for x in (k, v))
    for start in range(max(window, first), k.shape[2], WINDOW_QUERIES):
        end = min(start + WINDOW_QUERIES, k.shape[2])
        queries, keys, values = (
            q[:, :, start - first : end - first],
            k[:, :, start - window : end],
            v[:, :, start - window : end],
        )
        # Query r is at position window + r of the keys: it sees those after r, up to itself.
        mask = torch.ones(end - start, window + end - start, dtype=torch.bool, device=q.device).tril(window).triu(1)
        parts.append(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout))
    return torch.cat(parts, dim=2)


def _attend_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    """Return the attention of the last tokens to all tokens up to themselves."""
    if q.is_cuda:
        # Start-up: only runs on a GPU need it. It selects a flash kernel that needs no mask in memory.
        from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415

        is_grouped = q.shape[1] != k.shape[1]
        bias = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, enable_gqa=is_grouped)
    k, v = (_repeat_heads(x, q.shape[1]) for x in (k, v))
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout)


def _attend_part(  # noqa: PLR0913, PLR0917
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout: float,
    window: int,
    mask: AttentionMask,
    part: SequencePart,
) -> torch.Tensor:
    """Return the attention of a part of each sequence to the whole sequences, whose keys and values are gathered."""
    keys, values = part.gather(torch.stack((k, v)), dim=3).unbind()
    if mask.visible is None:
        # Each of the two chunks only sees the keys up to its own end.
        ends = [(chunk + 1) * q.shape[2] // 2 for chunk in part.chunks]
        chunks = zip(q.chunk(2, dim=2), ends, strict=True)
        outputs = [
            attend(own, keys[:, :, :end], values[:, :, :end], dropout=dropout, window=window) for own, end in chunks
        ]
        return torch.cat(outputs, dim=2)
    keys, values = (_repeat_heads(x, q.shape[1]) for x in (keys, values))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask.visible, dropout_p=dropout)


def _repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a copy of each key or value head for every query head that shares it."""
    return x.unsqueeze(2).expand(-1, -1, heads // x.shape[1], -1, -1).flatten(1, 2)
