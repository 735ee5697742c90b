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
HOPPER = (9, 0)
# On an H200 with torch 2.11, torch's own sizes, 128 x 128 tokens forward and 64 x 128 backward, take 3 % and 8 % more
# time for heads of 64 values.
HOPPER_HEADS_OF_64 = {
    "fwd_BLOCK_M": 64,
    "fwd_BLOCK_N": 64,
    "fwd_num_warps": 4,
    "fwd_num_stages": 3,
    "bwd_BLOCK_M1": 64,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 128,
    "bwd_BLOCK_N2": 64,
    "bwd_num_warps": 4,
    "bwd_num_stages": 3,
}


def attend_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Return attention between the tokens that see each other; several query heads may share one key head."""
    options = choose_options(_read_capability(q.device.index) if q.is_cuda else (0, 0), q.dtype, q.shape[3])
    is_grouped = q.shape[1] != k.shape[1]
    attended: torch.Tensor = _flex_attention(q, k, v, block_mask=mask, enable_gqa=is_grouped, kernel_options=options)
    return attended


def choose_options(capability: tuple[int, int], dtype: torch.dtype, head_dim: int) -> dict[str, int] | None:
    """Return the options of flex_attention's kernels for a GPU, or None if torch's own are not known to be slower."""
    is_half = dtype in {torch.bfloat16, torch.float16}
    return dict(HOPPER_HEADS_OF_64) if capability == HOPPER and is_half and head_dim == 64 else None  # noqa: PLR2004


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _read_capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


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
