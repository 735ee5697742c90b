"""Attention within documents by flex_attention, which skips the blocks of tokens that do not see each other.

Importing this file imports torch's compiler, so it is imported only by runs that use it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK_TOKENS = 128
# By the number of values of a head: what is faster than torch's own choice. On an H200, with 2 samples of 4096 tokens,
# 32 query heads and 8 key heads in bf16, both passes take 1.70 instead of 2.03 ms, and 2.88 instead of 3.27 ms.
# Blocks of fp32 need twice the shared memory, so they keep torch's sizes.
_HOPPER_OPTIONS = {
    64: {
        "bwd_BLOCK_M1": 64,
        "bwd_BLOCK_N1": 64,
        "bwd_BLOCK_M2": 128,
        "bwd_BLOCK_N2": 64,
        "bwd_num_warps": 4,
        "bwd_num_stages": 3,
    },
    128: {
        "fwd_BLOCK_M": 64,
        "fwd_BLOCK_N": 64,
        "fwd_num_warps": 4,
        "fwd_num_stages": 3,
        "bwd_BLOCK_M1": 64,
        "bwd_BLOCK_N1": 128,
        "bwd_BLOCK_M2": 128,
        "bwd_BLOCK_N2": 64,
        "bwd_num_warps": 8,
        "bwd_num_stages": 3,
    },
}
# A constant, because the compiler cannot trace the question for the GPU.
KERNEL_OPTIONS = _HOPPER_OPTIONS if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0) else {}
_MEASURED_BYTES = 2
# Shapes never change within a run: a graph for any shape would be slower. A script whose batches have many lengths
# compiles one graph for each, up to torch._dynamo.config.recompile_limit.
_flex_attention: Any = torch.compile(flex_attention, dynamic=False)


def attend_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Return attention between the tokens that see each other; several query heads may share one key head."""
    sharing = q.shape[1] // k.shape[1]
    if sharing > 1:
        # Each query head gets a copy of its keys. Otherwise one group of threads would add up the gradients of a block
        # of keys over all heads that share it, and the others would wait for the group of the first, longest block.
        k, v = (heads.repeat_interleave(sharing, dim=1) for heads in (k, v))
    options = KERNEL_OPTIONS.get(q.shape[-1]) if q.element_size() == _MEASURED_BYTES else None
    attended: torch.Tensor = _flex_attention(q, k, v, block_mask=mask, kernel_options=options)
    return attended


def make_block_mask(first_keys: torch.Tensor) -> BlockMask:
    """Return which tokens see each other, token by token and block by block.

    Each query sees the keys from `first_keys` (B, T) up to itself; later queries do not see earlier keys than others.
    The first and last query of a block then tell all about it: torch's own `create_block_mask` would compare every
    token with every other one. Nothing waits for the device.
    """
    seen, full = find_blocks(first_keys)
    partial = seen & ~full
    counts, numbers = _order(torch.stack((partial, full, partial.mT, full.mT)))
    length = first_keys.shape[1]
    # As torch's kernels count tokens.
    first_keys = first_keys.to(torch.int32)

    def sees(sample: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key >= first_keys[sample, query]) & (key <= query)

    return BlockMask(
        (length, length),
        *(lists for pair in zip(counts, numbers, strict=True) for lists in pair),
        BLOCK_SIZE=(BLOCK_TOKENS, BLOCK_TOKENS),
        mask_mod=sees,
    )


def find_blocks(first_keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each block of queries the blocks of keys that some, and that all, of its tokens see.

    The shape of both is (samples, 1, blocks of queries, blocks of keys).
    """
    length = first_keys.shape[1]
    number = torch.arange(-(-length // BLOCK_TOKENS), device=first_keys.device)
    begin, end = number * BLOCK_TOKENS, (number + 1) * BLOCK_TOKENS
    of_first, of_last = (first_keys[:, queries].unsqueeze(-1) for queries in (begin, end.clamp(max=length) - 1))
    distance = number[:, None] - number
    seen = (distance >= 0) & (of_first < end)
    # As in torch's own masks, a block that reaches beyond the end of the samples is not full.
    full = (end <= length)[:, None] & (distance > 0) & (of_last <= begin)
    return seen.unsqueeze(1), full.unsqueeze(1)


def _order(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks of each row are set, and the numbers of all blocks with those that are set first."""
    flags = blocks.to(torch.int32)
    order = flags.argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32), order.to(torch.int32, memory_format=torch.contiguous_format)
