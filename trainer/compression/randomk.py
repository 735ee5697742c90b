"""Random-K with error feedback: in every step, all ranks send the same random elements and remember the others.

All ranks draw the same positions from the same seed, so no indices are sent, and the values are averaged by an ordinary
all-reduce in fp32. It sends 1 / ratio times fewer bytes than the whole gradient, on any number of ranks, and needs no
search for large elements. But it sends small elements as often as large ones, so it loses more accuracy than top-K.

The gradient is cut into as many stretches of equal length as there are elements to send, and one element of each is
drawn. So positions are spread evenly, none is drawn twice, and drawing takes time for the elements that are sent only.

    accumulated = gradient + residual
    result      = average over all ranks of accumulated at the positions, 0 elsewhere
    residual    = accumulated with 0 at the positions

A NaN or infinity that is not drawn would stay behind in the residual, and the step would look healthy. So the sum of
all elements travels with the values: if it is not finite, neither is the result.

Stich et al. 2018 (https://arxiv.org/abs/1809.07599).
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.compression.wire import Wire


def average_randomk(gradient: Any, residual: Any, wire: Wire, ratio: float, seed: int) -> Any:
    """Replace a flat fp32 gradient by the average of what the ranks send, and return the new residual.

    `seed` must be the same on all ranks and another one for each bucket and step.
    """
    accumulated = gradient + residual
    positions = draw_positions(accumulated.numel(), ratio, seed).to(gradient.device)
    # 0 if all elements are finite, NaN otherwise.
    check = (accumulated * 0).sum().reshape(1)
    message = torch.cat([accumulated[positions], check])
    wire.all_reduce(message)
    message.div_(wire.ranks)
    gradient.zero_()
    gradient[positions] = message[:-1] + message[-1]
    accumulated[positions] = 0.0
    return accumulated


def draw_positions(size: int, ratio: float, seed: int) -> Any:
    """Return a position in each of `ratio * size` stretches of about equal length; at least one, if there are any."""
    count = min(size, max(1, int(size * ratio)))
    edges = torch.arange(count + 1) * size // max(1, count)
    # Drawn on the host, because generators of other devices draw other numbers.
    shares = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return edges[:-1] + (shares * edges.diff()).long()
