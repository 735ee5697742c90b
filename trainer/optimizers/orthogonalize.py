"""Replace a matrix by the nearest orthogonal one, approximately; the data-parallel ranks share the matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from trainer.optimizers.sizes import GATHERED_VALUES
from trainer.parallel.mesh import Mesh

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a x + b x^3 + c x^5, which brings singular values between 0 and 1 close to 1."""
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7


def list_own_matrices(mesh: Mesh | None) -> range:
    """Return which of the matrices, one per data-parallel rank, this rank's replica orthogonalises."""
    if mesh is None:
        return range(1)
    ranks, replica = mesh.weights.shard, mesh.coordinate("replicate")
    return range(replica * ranks, (replica + 1) * ranks)


def orthogonalize_parts(
    parts: list[torch.Tensor], shape: Sequence[int], mesh: Mesh | None
) -> Iterator[tuple[slice, Sequence[torch.Tensor]]]:
    """Orthogonalise up to one matrix per data-parallel rank and yield the results, some rows of all matrices at a time.

    `parts` are this rank's rows of the replica's own matrices, also if empty. Under fsdp, each rank gathers the rows of
    one matrix, computes it, and returns rows to their ranks. Replicas compute different matrices and exchange the
    results, so that all of them add the same bits. Results have rows of padding if the ranks do not divide the matrix.
    """
    if mesh is None or mesh.weights.dp_size == 1:
        yield slice(None), [orthogonalize(part) for part in parts]
        return
    rows = -(-shape[0] // mesh.weights.shard)
    own = torch.zeros(mesh.weights.shard, rows, shape[1], dtype=torch.bfloat16, device=mesh.device)
    for place, part in zip(own, parts, strict=False):
        place[: len(part)] = part
    whole = _exchange(own, mesh).view(-1, shape[1])
    # The last matrices may be fewer than the ranks.
    if mesh.coordinate("shard") < len(parts):
        whole[: shape[0]] = orthogonalize(whole[: shape[0]])
    yield from _gather_replicas(_exchange(whole.view_as(own), mesh), mesh)


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with nearly the same singular vectors and singular values near 1, by Newton-Schulz iteration.

    bf16 is accurate enough: the result only needs singular values between about 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.bfloat16()
    is_tall = wide.shape[0] > wide.shape[1]
    if is_tall:
        wide = wide.T
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide


def _exchange(parts: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Send part i to rank i of the shard axis and return the parts that came from each rank."""
    group = mesh.group("shard")
    if group is None:
        return parts.clone()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts.contiguous(), group=group)
    return received


def _gather_replicas(parts: torch.Tensor, mesh: Mesh) -> Iterator[tuple[slice, Sequence[torch.Tensor]]]:
    """Yield the parts of all replicas, in their order, as many rows at a time as GATHERED_VALUES allows."""
    group = mesh.group("replicate")
    if group is None:
        yield slice(None), parts.unbind()
        return
    _, rows, width = parts.shape
    count = max(1, GATHERED_VALUES // (mesh.weights.dp_size * width))
    for first in range(0, rows, count):
        sent = parts[:, first : first + count].contiguous()
        gathered = sent.new_empty(mesh.weights.dp_size, *sent.shape[1:])
        dist.all_gather_into_tensor(gathered, sent, group=group)
        yield slice(first, first + count), gathered.unbind()
