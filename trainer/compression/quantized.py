"""All-reduce of gradients in bf16, fp8 or int8: short numbers travel, and sums are made in fp32.

Every rank averages one part of the gradient. It receives that part from all ranks, in the short format (all-to-all),
adds the contributions in fp32 in the order of the ranks, and sends the average to all ranks, again in the short format
(all-gather). So each element is rounded twice, however many ranks there are; an all-reduce in a short format would
round after every addition. All ranks decode the same bytes, so they end with the same result, bit for bit.

| format | on the wire                                          | fewer bytes than fp32 |
|--------|------------------------------------------------------|-----------------------|
| bf16   | 8 bits of the mantissa, all exponents of fp32        | 2                     |
| fp8    | e4m3, relative to the largest element of 256         | 3.9                   |
| int8   | 255 equal steps, relative to the largest of 256      | 3.9                   |

fp8 and int8 send an fp32 scale with each block of 256 elements. If a block has a NaN or infinity, so has its scale, and
all elements of the block become NaN. There is no residual: what rounding takes from an element is lost. With int8,
elements below half a step, 1/254 of the largest of their block, are sent as 0 in every step; with fp8, those below
1/458,752 of it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from trainer.compression.wire import Wire

Format = Literal["bf16", "fp8", "int8"]
BLOCK = 256
"""Elements that share a scale."""
SCALE_BYTES = 4
_LARGEST = {"fp8": 448.0, "int8": 127.0}
_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def average_quantized(gradient: Any, wire: Wire, short: Format) -> Any:
    """Replace a flat fp32 gradient by the average over ranks; return what rounding took from this rank's share."""
    size = gradient.numel()
    # All parts have the same number of whole blocks.
    part = -(-size // (wire.ranks * BLOCK)) * BLOCK
    padded = torch.nn.functional.pad(gradient, (0, part * wire.ranks - size)).view(wire.ranks, part)
    message = encode(padded, short)
    lost = gradient - decode(message, short).flatten()[:size]
    contributions = decode(wire.all_to_all(message), short)
    total = contributions[0]
    for contribution in contributions[1:]:
        total += contribution
    averages = wire.all_gather(encode((total / wire.ranks).view(1, part), short))
    gradient.copy_(decode(averages, short).flatten()[:size])
    return lost


def encode(rows: Any, short: Format) -> Any:
    """Return rows of bytes for rows of whole blocks: the elements in the short format, then the scales."""
    if short == "bf16":
        return rows.to(torch.bfloat16).view(torch.uint8)
    blocks = rows.view(len(rows), -1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True) / _LARGEST[short]
    scaled = blocks / torch.where(scales == 0, 1.0, scales)
    # Conversion to int8 drops fractions; to fp8, it rounds.
    values = (scaled.round() if short == "int8" else scaled).to(_DTYPES[short])
    return torch.cat([values.flatten(1).view(torch.uint8), scales.flatten(1).view(torch.uint8)], 1)


def decode(message: Any, short: Format) -> Any:
    """Return rows of fp32 elements for rows of bytes."""
    if short == "bf16":
        return message.view(torch.bfloat16).float()
    blocks = message.shape[1] // (BLOCK + SCALE_BYTES)
    values = message[:, : blocks * BLOCK].contiguous().view(_DTYPES[short]).view(len(message), blocks, BLOCK)
    scales = message[:, blocks * BLOCK :].contiguous().view(torch.float32).view(len(message), blocks, 1)
    return (values.float() * scales).flatten(1)
