"""Attention within documents by flex_attention, which skips the blocks of tokens that do not see each other.

Importing this file imports torch's compiler, so it is imported only by runs that use it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK_TOKENS = 128
# Shapes never change within a run: a graph for any shape would be slower. A script whose batches have many lengths
# compiles one graph for each, up to torch._dynamo.config.recompile_limit.
_flex_attention: Any = torch.compile(flex_attention, dynamic=False)


def attend_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Return attention between the tokens that see each other; several query heads may share one key head."""
    attended: torch.Tensor = _flex_attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return attended


def make_block_mask(documents: torch.Tensor, window: int) -> BlockMask:
    """Return which tokens see each other, token by token and block by block.

    Numbers of documents must not decrease, as those of `number_documents` do not. Those of a block's first and last
    token then tell all about it: torch's own `create_block_mask` would compare every token with every other one.
    Nothing waits for the device.
    """
    seen, full = find_blocks(documents, window)
    partial_keys, full_keys = _order(seen & ~full), _order(full)
    partial_queries, full_queries = _order((seen & ~full).mT), _order(full.mT)
    length = documents.shape[1]

    def sees(sample: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        is_visible = (query >= key) & (documents[sample, query] == documents[sample, key])
        return is_visible & (query - key < window) if window else is_visible

    return BlockMask(
        (length, length),
        *partial_keys,
        *full_keys,
        *partial_queries,
        *full_queries,
        BLOCK_SIZE=(BLOCK_TOKENS, BLOCK_TOKENS),
        mask_mod=sees,
    )


def find_blocks(documents: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each block of queries the blocks of keys that some, and that all, of its tokens see.

    The shape of both is (samples, 1, blocks of queries, blocks of keys).
    """
    length = documents.shape[1]
    count = -(-length // BLOCK_TOKENS)
    number = torch.arange(count, device=documents.device)
    first = documents[:, number * BLOCK_TOKENS]
    last = documents[:, (number * BLOCK_TOKENS + BLOCK_TOKENS - 1).clamp(max=length - 1)]
    distance = number[:, None] - number
    seen = (distance >= 0) & (last[:, None, :] >= first[:, :, None])
    # As in torch's own masks, a block that reaches beyond the end of the samples is not full.
    is_whole = (number + 1) * BLOCK_TOKENS <= length
    full = is_whole[:, None] & (distance > 0) & (first[:, None, :] == last[:, :, None])
    if window:
        # Tokens of two blocks are at most one block further apart, and at most one nearer, than the blocks.
        seen &= distance * BLOCK_TOKENS - (BLOCK_TOKENS - 1) < window
        full &= distance * BLOCK_TOKENS + (BLOCK_TOKENS - 1) < window
    return seen.unsqueeze(1), full.unsqueeze(1)


def _order(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks of each row are set, and the numbers of all blocks with those that are set first."""
    flags = blocks.to(torch.int32)
    order = flags.argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32), order.to(torch.int32, memory_format=torch.contiguous_format)
