"""Plan which rank writes which part of each tensor; torch.distributed.checkpoint plans once, later saves reuse it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from trainer import safetensors_file
from trainer.checkpoint.folder import INDEX, index_part_name, shard_name
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.shard import PAGE_BYTES

if TYPE_CHECKING:
    import torch


MAX_INDEX_CHUNKS = 50_000
"""Parts of tensors up to which rank 0 writes the whole index, about 8 MB; beyond, all ranks write a part of it."""


@dataclass(frozen=True)
class ShardPart:
    """A part of a tensor in this rank's shard, from byte `start` to byte `end` of the file."""

    item: Any
    """torch's own description of the part."""
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class SavePlan:
    """The layout of this rank's shard."""

    key: tuple[Any, ...]
    """Names, shapes, types and placements of the tensors; while it stays the same, the plan is valid."""
    planner: Any
    parts: tuple[ShardPart, ...]
    head: bytes
    size: int
    index: Mapping[str, str]
    """The files of the index of all shards that this rank writes, as JSON by name."""


def make_key(tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return what the plan for these tensors depends on."""
    return tuple(
        (name, tuple(tensor.shape), tensor.dtype, str(getattr(tensor, "placements", "")))
        for name, tensor in sorted(tensors.items())
    )


def make_plan(tensors: Mapping[str, torch.Tensor], group: RankGroup) -> SavePlan:
    """Plan a save of these tensors.

    A tensor that several ranks hold is written by one of them, chosen so that all ranks write about equally many bytes.
    """
    # Start-up: importing it takes a second, and the first save comes later.
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: PLC0415

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=group.rank == 0)
    local = planner.create_local_plan()
    local = replace(local, items=[item for item in local.items if not _is_empty_shard(item)])
    described = [_describe_item(item) for item in local.items]
    positions, index = group.decide_on_first(described, lambda ranks: _distribute(planner, ranks))
    head, parts = _lay_out([local.items[position] for position in positions])
    size = parts[-1].end if parts else len(head)
    return SavePlan(make_key(tensors), planner, tuple(parts), head, size, index)


def _is_empty_shard(item: Any) -> bool:
    """Return whether this rank holds nothing of the tensor, because a dimension is shorter than the number of ranks."""
    return math.prod(item.tensor_data.chunk.sizes) == 0 and math.prod(item.tensor_data.size) > 0


def _describe_item(item: Any) -> list[Any]:
    """Return an item as JSON; rank 0 plans with it, and no rank sends it torch's own, which would be pickled."""
    data = item.tensor_data
    place = [item.index.fqn, None if item.index.offset is None else list(item.index.offset), item.type.name]
    chunk = [list(data.chunk.offsets), list(data.chunk.sizes)]
    return [*place, *chunk, safetensors_file.dtype_code(data.properties), list(data.size)]


def _restore_item(described: list[Any]) -> Any:
    """Return torch's item for what `_describe_item` returned."""
    # Start-up: as in make_plan.
    import torch  # noqa: PLC0415
    from torch.distributed.checkpoint import metadata, planner  # noqa: PLC0415

    name, offset, kind, offsets, sizes, code, shape = described
    dtype = getattr(torch, safetensors_file.DTYPES[code][0])
    chunk = metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    return planner.WriteItem(
        metadata.MetadataIndex(name, offset),
        planner.WriteItemType[kind],
        tensor_data=planner.TensorWriteData(chunk, metadata.TensorProperties(dtype=dtype), torch.Size(shape)),
    )


def _split_index(tensors: Mapping[str, Any], ranks: int) -> list[dict[str, str]]:
    """Return the files of the index that each rank writes, by name.

    The index of a large model on thousands of ranks is a gigabyte: no rank should have to write all of it, or to
    receive it from rank 0.
    """
    if sum(len(entry["chunks"]) for entry in tensors.values()) <= MAX_INDEX_CHUNKS:
        return [{INDEX: json.dumps({"version": 1, "tensors": tensors})}, *({} for _ in range(ranks - 1))]
    parts: list[dict[str, Any]] = [{} for _ in range(ranks)]
    # One chunk for each rank in turn, across all tensors: no part has more than one chunk more than another one.
    turns = cycle(parts)
    for name, entry in tensors.items():
        for chunk in entry["chunks"]:
            next(turns).setdefault(name, {**entry, "chunks": []})["chunks"].append(chunk)
    names = [index_part_name(rank) for rank in range(ranks)]
    files = [{name: json.dumps({"tensors": part})} for name, part in zip(names, parts, strict=True)]
    files[0][INDEX] = json.dumps({"version": 2, "parts": names})
    return files


def _distribute(planner: Any, ranks: list[list[Any]]) -> list[tuple[list[int], dict[str, str]]]:
    """Return for each rank the positions of the items that it writes, and the files of the index."""
    # Start-up: as in make_plan.
    from torch.distributed.checkpoint.planner import SavePlan as TorchPlan  # noqa: PLC0415

    plans = [TorchPlan([_restore_item(described) for described in items]) for items in ranks]
    global_plans, _ = planner.create_global_plan(_keep_first_buffers(plans))
    index: dict[str, Any] = {}
    answers = []
    for rank, (plan, chosen) in enumerate(zip(plans, global_plans, strict=True)):
        _, parts = _lay_out(chosen.items)
        for name, part in zip(_make_names(parts), parts, strict=True):
            _add_to_index(index, shard_name(rank), name, part)
        positions = {item.index: position for position, item in enumerate(plan.items)}
        answers.append([positions[item.index] for item in chosen.items])
    return list(zip(answers, _split_index(index, len(ranks)), strict=True))


def _keep_first_buffers(plans: list[Any]) -> list[Any]:
    """Leave each buffer to the first rank that has it.

    Unlike other tensors that several ranks hold, buffers such as running means can differ between ranks.
    """
    assigned: set[str] = set()
    reduced = []
    for plan in plans:
        items = [item for item in plan.items if item.index.fqn not in assigned]
        assigned |= {item.index.fqn for item in items if item.index.fqn.startswith("buffer.")}
        reduced.append(replace(plan, items=items))
    return reduced


def _lay_out(items: list[Any]) -> tuple[bytes, list[ShardPart]]:
    """Return the head of a shard with these items, and its parts in the order of the file."""
    parts = [_make_part(item) for item in items]
    by_name = dict(zip(_make_names(parts), parts, strict=True))
    described = {name: (part.dtype, part.shape) for name, part in by_name.items()}
    origins = {name: list(part.item.tensor_data.chunk.offsets) for name, part in by_name.items()}
    metadata = {"format": "pt", "offsets": json.dumps(origins, separators=(",", ":"))}
    head, entries = safetensors_file.encode_header(described, metadata, align=PAGE_BYTES)
    return head, [replace(by_name[name], start=entry.start, end=entry.end) for name, entry in entries.items()]


def _make_part(item: Any) -> ShardPart:
    data = item.tensor_data
    code = safetensors_file.dtype_code(data.properties)
    return ShardPart(item, code, tuple(data.chunk.sizes), 0, 0)


def _make_names(parts: list[ShardPart]) -> list[str]:
    """Return the name of each part: that of its tensor, with the offsets added to a second part in the same file."""
    names: dict[str, None] = {}
    for part in parts:
        name = part.item.index.fqn
        if name in names:
            name += "@" + ",".join(str(n) for n in part.item.tensor_data.chunk.offsets)
        names[name] = None
    return list(names)


def _add_to_index(index: dict[str, Any], file: str, name: str, part: ShardPart) -> None:
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
