"""Who writes which part of which tensor where: planned by torch.distributed.checkpoint once, kept while shapes stay."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainer import safetensors_file
from trainer.checkpoint.folder import shard_name
from trainer.checkpoint.group import Group
from trainer.checkpoint.shard import PAGE

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Part:
    """One part of a tensor in this rank's file; `item` is torch's own description of it."""

    item: Any
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Plan:
    key: tuple[Any, ...]
    planner: Any
    parts: tuple[Part, ...]
    head: bytes
    size: int
    # The index of all files; rank 0 writes it.
    index: str


def key_of(tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Equal keys mean equal plans."""
    return tuple(
        (name, tuple(tensor.shape), tensor.dtype, str(getattr(tensor, "placements", "")))
        for name, tensor in sorted(tensors.items())
    )


def make(tensors: Mapping[str, torch.Tensor], group: Group) -> Plan:
    """Tensors that several ranks hold are written by one of them, so that all have about the same number of bytes."""
    # Importing it takes a second: not at start-up.
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: PLC0415

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=group.rank == 0)
    local = planner.create_local_plan()
    local = replace(local, items=[item for item in local.items if not _is_empty_shard(item)])
    items, index = group.through_first(local, lambda plans: _spread(planner, plans))
    head, parts = _lay_out(items)
    size = parts[-1].end if parts else len(head)
    return Plan(key_of(tensors), planner, tuple(parts), head, size, index)


def _is_empty_shard(item: Any) -> bool:
    """A rank beyond the end of a short dimension holds nothing of it."""
    return math.prod(item.tensor_data.chunk.sizes) == 0 and math.prod(item.tensor_data.size) > 0


def _spread(planner: Any, plans: list[Any]) -> list[tuple[list[Any], str]]:
    """For each rank its items, and for rank 0 the index of all of them."""
    spread, _ = planner.create_global_plan(_buffers_of_first(plans))
    index: dict[str, Any] = {}
    for rank, plan in enumerate(spread):
        _, parts = _lay_out(plan.items)
        for name, part in zip(_names(parts), parts, strict=True):
            _add(index, shard_name(rank), name, part)
    text = json.dumps({"version": 1, "tensors": index})
    return [(plan.items, text if rank == 0 else "") for rank, plan in enumerate(spread)]


def _buffers_of_first(plans: list[Any]) -> list[Any]:
    """Buffers can differ between ranks (running means), unlike other tensors that several have: keep the first's."""
    seen: set[str] = set()
    kept = []
    for plan in plans:
        items = [item for item in plan.items if item.index.fqn not in seen]
        seen |= {item.index.fqn for item in items if item.index.fqn.startswith("buffer.")}
        kept.append(replace(plan, items=items))
    return kept


def _lay_out(items: list[Any]) -> tuple[bytes, list[Part]]:
    parts = [_part(item) for item in items]
    by_name = dict(zip(_names(parts), parts, strict=True))
    described = {name: (part.dtype, part.shape) for name, part in by_name.items()}
    origins = {name: list(part.item.tensor_data.chunk.offsets) for name, part in by_name.items()}
    metadata = {"format": "pt", "offsets": json.dumps(origins, separators=(",", ":"))}
    head, entries = safetensors_file.encode(described, metadata, align=PAGE)
    return head, [replace(by_name[name], start=entry.start, end=entry.end) for name, entry in entries.items()]


def _part(item: Any) -> Part:
    data = item.tensor_data
    code = safetensors_file.code_of(data.properties)
    return Part(item, code, tuple(data.chunk.sizes), 0, 0)


def _names(parts: list[Part]) -> list[str]:
    """A tensor goes by its own name; a second part of it in the same file has its place added."""
    names: dict[str, None] = {}
    for part in parts:
        name = part.item.index.fqn
        if name in names:
            name += "@" + ",".join(str(n) for n in part.item.tensor_data.chunk.offsets)
        names[name] = None
    return list(names)


def _add(index: dict[str, Any], file: str, name: str, part: Part) -> None:
    data = part.item.tensor_data
    entry = {"dtype": part.dtype, "shape": list(data.size), "chunks": []}
    index.setdefault(part.item.index.fqn, entry)["chunks"].append(
        {
            "offsets": list(data.chunk.offsets),
            "sizes": list(data.chunk.sizes),
            "file": file,
            "name": name,
            "bytes": [part.start, part.end],
        }
    )
