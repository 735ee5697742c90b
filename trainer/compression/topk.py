"""Top-K with error feedback: every rank sends the largest elements of its gradient and remembers the others.

The gradient is cut into blocks of 65,536 elements, and the largest `ratio` of each block is sent: an index within the
block takes 16 bits and a value, in bf16, another 16. What is not sent, and what rounding to bf16 takes away, is the
rank's residual. It is added to the gradient of the next step, so every element is sent in the end: an element that
waits for ten steps arrives as the sum of ten gradients. This is why training still converges to the same loss.

Ranks select different elements, so messages cannot be added on their way. They are gathered, and every rank adds them
up in the order of the ranks: the result is the same on all of them, bit for bit. Compared with an fp32 all-reduce, n
ranks send 2 / (n * ratio) times fewer bytes: 50 times fewer at 1 % on 4 ranks.

    accumulated = gradient + residual
    message     = the largest elements of each block of accumulated
    residual    = accumulated - message
    result      = sum of the messages of all ranks / n

NaN counts as the largest element and infinity as the next, so the result is not finite if any gradient is not.

Aji and Heafield 2017 (https://arxiv.org/abs/1704.05021), Stich et al. 2018 (https://arxiv.org/abs/1809.07599).
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.compression.wire import Wire

BLOCK = 1 << 16
"""Elements that a 16-bit index can tell apart."""
ENTRY_BYTES = 4
"""An index and a bf16 value."""


def average_topk(gradient: Any, residual: Any, wire: Wire, ratio: float) -> Any:
    """Replace a flat fp32 gradient by the average of what the ranks send, and return the new residual."""
    accumulated = gradient + residual
    positions = select_largest(accumulated, ratio)
    values = accumulated[positions].bfloat16()
    messages = wire.all_gather(encode(positions, values))
    gradient.zero_()
    for message in messages:
        add_message(gradient, message, ratio)
    gradient.div_(wire.ranks)
    return accumulated.index_add_(0, positions, values.float(), alpha=-1)


def select_largest(values: Any, ratio: float) -> Any:
    """Return the positions of the largest magnitudes of each block, block after block."""
    size = values.numel()
    whole = size // BLOCK
    magnitudes = values.abs()
    in_blocks = magnitudes[: whole * BLOCK].view(whole, BLOCK).topk(count_selected(BLOCK, ratio), sorted=False).indices
    in_tail = magnitudes[whole * BLOCK :].topk(count_selected(size % BLOCK, ratio), sorted=False).indices
    return torch.cat([in_blocks.flatten(), in_tail]) + _list_block_starts(size, ratio, values.device)


def count_selected(size: int, ratio: float) -> int:
    """Return how many elements of a block are sent: at least one, so that no block waits forever."""
    return min(size, max(1, int(size * ratio)))


def encode(positions: Any, values: Any) -> Any:
    """Return a message of bytes: bf16 values, then the low 16 bits of their positions."""
    indices = (positions % BLOCK - BLOCK // 2).to(torch.int16)
    return torch.cat([values.view(torch.uint8), indices.view(torch.uint8)])


def add_message(gradient: Any, message: Any, ratio: float) -> None:
    """Add the values of a message to a flat gradient of the same size as the sender's."""
    values, indices = message.view(2, -1)
    positions = indices.view(torch.int16).long() + BLOCK // 2
    positions += _list_block_starts(gradient.numel(), ratio, gradient.device)
    # A message has each position once, so the order of additions does not matter.
    gradient.index_add_(0, positions, values.view(torch.bfloat16).float())


def _list_block_starts(size: int, ratio: float, device: Any) -> Any:
    """Return the start of the block of each selected element."""
    whole, tail = divmod(size, BLOCK)
    starts = torch.arange(0, whole * BLOCK, BLOCK, device=device).repeat_interleave(count_selected(BLOCK, ratio))
    return torch.cat([starts, torch.full((count_selected(tail, ratio),), whole * BLOCK, device=device)])
