"""Which tokens see each other, beyond causal attention: a decoder computes it once for all of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from trainer.models.sequence_part import SequencePart

DocumentKernel = Literal["mask", "flex"]


@dataclass(frozen=True)
class AttentionMask:
    """The tokens that see each other."""

    positions: torch.Tensor
    """For each token, its position within its document (B, T), or within its sequence (1, T)."""
    visible: torch.Tensor | None = None
    """For each query, the keys that it sees (B, 1, T, T); None if `blocks` says it, or if it sees all earlier ones."""
    part: SequencePart | None = None
    """The part of each sequence that this rank holds, or None if it holds whole ones; keys are then gathered."""
    blocks: Any = None
    """The BlockMask of flex_attention."""


def choose_mask(
    x: torch.Tensor, documents: torch.Tensor | None, part: SequencePart | None, kernel: DocumentKernel, window: int = 0
) -> AttentionMask | None:
    """Return the mask of a decoder's layers, or None if plain causal attention is enough.

    `x` has the tokens of this rank or, in later stages of a pipeline, their hidden states.
    """
    return make_mask(documents, window, kernel) if part is None else make_part_mask(part, x, documents, window)


def make_mask(documents: torch.Tensor | None, window: int = 0, kernel: DocumentKernel = "mask") -> AttentionMask | None:
    """Return the mask that separates documents (B, T), or None if there are none.

    Neighbouring tokens with the same number belong to one document. Nothing waits for the device.
    """
    if documents is None:
        return None
    order = torch.arange(documents.shape[1], device=documents.device)
    starts = find_starts(documents, order)
    first_keys = _limit(starts, order, window)
    if kernel == "flex":
        # Start-up: torch's compiler takes seconds to import.
        from trainer.models.document_blocks import make_block_mask  # noqa: PLC0415

        return AttentionMask(order - starts, blocks=make_block_mask(first_keys))
    return AttentionMask(order - starts, _compare(first_keys, order, order))


def make_part_mask(
    part: SequencePart, x: torch.Tensor, documents: torch.Tensor | None, window: int = 0
) -> AttentionMask:
    """Return the mask of a rank that holds a part of each sequence; `documents` are those of whole sequences (B, T).

    Without documents the layers themselves limit attention to a window.
    """
    is_hidden = x.dim() > 2  # noqa: PLR2004 - samples and tokens
    own = part.list_positions(x.shape[1] * (part.tensor if is_hidden else 1), x.device)
    if documents is None:
        return AttentionMask(own.unsqueeze(0), part=part)
    order = torch.arange(documents.shape[1], device=documents.device)
    starts = find_starts(documents, order)
    first_keys = part.take(_limit(starts, order, window))
    return AttentionMask(part.take(order - starts), _compare(first_keys, own, order), part)


def find_starts(documents: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return, for each token, the position in the sample at which its document starts; `order` counts the tokens."""
    is_first = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return torch.where(is_first, order, 0).cummax(dim=1).values


def _limit(starts: torch.Tensor, order: torch.Tensor, window: int) -> torch.Tensor:
    """Return the first key that each query sees: that of its document or of its window, if there is one."""
    return torch.maximum(starts, order - window + 1) if window else starts


def _compare(first_keys: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return whether each query sees each key, given the positions of both and the first key of each query."""
    return ((keys >= first_keys.unsqueeze(-1)) & (keys <= queries.unsqueeze(-1))).unsqueeze(1)
