"""A reader by which torch.distributed.checkpoint loads tensors from the safetensors files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import StorageReader

from trainer import safetensors_file
from trainer.checkpoint.read_retry import read_with_retries


class ShardReader(StorageReader):
    """A reader for one load of the checkpoint in `path`; `index` is the content of its index.json."""

    def __init__(self, path: Path, index: Mapping[str, Any]) -> None:
        self._path = path
        self._index = index
        self._files: dict[Path, safetensors_file.Reader] = {}
        self._chunks = {
            (name, tuple(chunk["offsets"])): chunk for name, entry in index.items() for chunk in entry["chunks"]
        }

    def read_metadata(self, *_: Any) -> Metadata:
        return Metadata({name: _describe(entry) for name, entry in self._index.items()})

    def read_data(self, plan: Any, planner: Any) -> Any:
        for request in plan.items:
            source = self._read_chunk(request.storage_index, request.storage_offsets, request.lengths)
            target = planner.resolve_tensor(request).detach()
            target.copy_(source)
            planner.commit_tensor(request, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: each reader is for one load."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any) -> None:
        """Do nothing: files are opened when they are needed."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return Path(checkpoint_id).is_dir()

    def _read_chunk(self, location: Any, offsets: Sequence[int], lengths: Sequence[int]) -> Any:
        """Return a part of a chunk; only its rows are read."""
        chunk = self._chunks[location.fqn, tuple(location.offset)]
        path, name = self._path / chunk["file"], chunk["name"]
        first, count = (offsets[0], lengths[0]) if offsets else (0, 1)

        def read() -> Any:
            if path not in self._files:
                self._files[path] = safetensors_file.Reader(path)
            try:
                return self._files[path].read_rows(name, first, first + count)
            except OSError:
                # Opening it again replaces a stale handle.
                del self._files[path]
                raise

        source = read_with_retries(path, read)
        for dim, (start, length) in enumerate(zip(offsets[1:], lengths[1:], strict=True), start=1):
            source = source.narrow(dim, start, length)
        return source


def _describe(entry: Mapping[str, Any]) -> TensorStorageMetadata:
    dtype = getattr(torch, safetensors_file.DTYPES[entry["dtype"]][0])
    chunks = [ChunkStorageMetadata(torch.Size(c["offsets"]), torch.Size(c["sizes"])) for c in entry["chunks"]]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(entry["shape"]), chunks)
