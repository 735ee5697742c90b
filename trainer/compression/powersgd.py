"""PowerSGD: every matrix of gradients is sent as the product of two thin matrices, with error feedback.

A gradient M of n x m elements is replaced by P Q^T, where P has n x r elements and Q has m x r. One step of the power
iteration finds them: P = M Q for the Q of the step before (warm start), then Q = M^T P with orthogonal columns of P.
Both products are linear in M, so the average over ranks of P and of Q is found by ordinary all-reduces, and all ranks
end with the same P Q^T. For r = 4, a matrix of 4096 x 4096 takes 512 times fewer bytes.

    accumulated = gradient + residual, as a matrix for each parameter
    P           = orthogonal columns of the average over ranks of accumulated Q
    Q           = the average over ranks of accumulated^T P
    result      = P Q^T
    residual    = accumulated - P (accumulated^T P)^T, what P cannot express of this rank's own matrix

Vectors, and matrices that are not smaller as P and Q, are averaged whole, together with P. Householder's QR makes
columns orthogonal even if some are 0, so a matrix whose gradient was 0 for a step recovers. A NaN or infinity spreads
over P and so to the result on all ranks.

Vogels et al. 2019 (https://arxiv.org/abs/1905.13727). There the residual is taken from the averaged product, which has
the same average over ranks; with this rank's own product, differences between ranks do not pile up in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trainer.compression.wire import Wire


def average_powersgd(
    gradient: Any, residual: Any, queries: Sequence[Any], shapes: Sequence[Sequence[int]], wire: Wire
) -> tuple[Any, list[Any]]:
    """Replace a flat fp32 gradient by the average of what the ranks send; return the new residual and queries.

    The gradient consists of tensors of these shapes. `queries` has the Q of each, or None if it is sent whole.
    """
    accumulated = gradient + residual
    sizes = [math.prod(shape) for shape in shapes]
    parts = [
        part if query is None else part.view(shape[0], -1)
        for part, query, shape in zip(accumulated.split(sizes), queries, shapes, strict=True)
    ]
    averages = average_together(
        [part if query is None else part @ query for part, query in zip(parts, queries, strict=True)], wire
    )
    bases = {index: torch.linalg.qr(average).Q for index, average in enumerate(averages) if queries[index] is not None}
    own_queries = {index: parts[index].T @ basis for index, basis in bases.items()}
    new_queries = dict(zip(own_queries, average_together(list(own_queries.values()), wire), strict=True))
    for index, result in enumerate(gradient.split(sizes)):
        if index in bases:
            torch.mm(bases[index], new_queries[index].T, out=result.view_as(parts[index]))
            parts[index].addmm_(bases[index], own_queries[index].T, alpha=-1)
        else:
            result.copy_(averages[index])
            parts[index].zero_()
    return accumulated, [new_queries.get(index) for index in range(len(parts))]


def make_query(shape: Sequence[int], rank: int, seed: int) -> Any:
    """Return the first Q of a parameter, the same on all ranks; None if P and Q are not smaller than the parameter."""
    if len(shape) < 2:  # noqa: PLR2004  # a vector
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    if (rows + columns) * rank >= rows * columns or rank > min(rows, columns):
        return None
    return torch.randn(columns, rank, generator=torch.Generator().manual_seed(seed))


def average_together(tensors: Sequence[Any], wire: Wire) -> list[Any]:
    """Return the averages of tensors over all ranks, by a single all-reduce."""
    if not tensors:
        return []
    message = torch.cat([tensor.flatten() for tensor in tensors])
    wire.all_reduce(message)
    message.div_(wire.ranks)
    pieces = message.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
