"""The number format of the residual stream, which every layer of a decoder reads and adds to."""

from __future__ import annotations

import torch


def begin_residual(embedded: torch.Tensor) -> torch.Tensor:
    """Return the embedded tokens in bf16 if autocast computes products in it.

    Autocast leaves embeddings in fp32, and then every sum with them: the memory would move twice as many bytes between
    layers. fp16 stays with fp32, because its range is too small for sums over many layers.
    """
    kind = embedded.device.type
    # Models without memory are on a device of their own, which has no autocast.
    if not embedded.is_meta and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return embedded.to(torch.bfloat16)
    return embedded
