"""Exchange JSON values between the ranks of a group, as tensors of bytes.

torch's object collectives unpickle what they receive, so that anyone who can send to a rank could run code in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
_HOST = torch.device("cpu")


def gather_values(value: Any, group: Any) -> list[Any]:
    """Return the values of all ranks, on all ranks."""
    return [json.loads(text) for text in gather_bytes(_encode(value), group, _HOST)]


def gather_on_first(value: Any, group: Any) -> list[Any]:
    """Return the values of all ranks on rank 0, and an empty list on the others."""
    own = _encode(value)
    row = _pad(own, _find_longest(len(own), group))
    rows = row.new_empty(dist.get_world_size(group), len(row)) if dist.get_rank(group) == 0 else None
    dist.gather(row, None if rows is None else list(rows.unbind()), group=group, group_dst=0)
    return [] if rows is None else [_decode(each) for each in rows]


def scatter_from_first(values: Sequence[Any], group: Any) -> Any:
    """Return this rank's value of those that rank 0 has for each rank; other ranks have none.

    All are padded to the longest but that of rank 0, which stays there: it may be the index of a whole checkpoint.
    """
    texts = [_encode(value) for value in values]
    size = max(1, _find_longest(max(map(len, texts[1:]), default=0), group))
    own = torch.empty(size, dtype=torch.uint8)
    rows = [_pad(text, size) for text in (b"", *texts[1:])] if texts else None
    dist.scatter(own, rows, group=group, group_src=0)
    return json.loads(texts[0]) if texts else _decode(own)


def broadcast_from_first(value: Any, group: Any) -> Any:
    """Return the value of rank 0 on all ranks."""
    text = _encode(value if dist.get_rank(group) == 0 else None)
    row = _pad(text, _find_longest(len(text), group))
    dist.broadcast(row, group=group, group_src=0)
    return _decode(row)


def gather_bytes(own: bytes, group: Any, device: torch.device) -> list[bytes]:
    """Return the bytes of each rank; `device` is the one that the group sends from."""
    sizes = gather_tensors(torch.tensor([len(own)], device=device), group).flatten().tolist()
    rows = gather_tensors(_pad(own, max(sizes)).to(device), group).cpu()
    return [row.numpy().tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]


def gather_tensors(own: torch.Tensor, group: Any) -> torch.Tensor:
    """Return a row for each rank, given tensors of the same shape."""
    rows = own.new_empty(dist.get_world_size(group), *own.shape)
    dist.all_gather(list(rows.unbind()), own, group=group)
    return rows


def _find_longest(size: int, group: Any) -> int:
    longest = torch.tensor([size])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    return int(longest)


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _decode(row: torch.Tensor) -> Any:
    # JSON may end with spaces.
    return json.loads(row.numpy().tobytes())


def _pad(text: bytes, size: int) -> torch.Tensor:
    # A tensor of no bytes cannot be made from a buffer.
    return torch.frombuffer(bytearray(text.ljust(max(size, 1))), dtype=torch.uint8)
