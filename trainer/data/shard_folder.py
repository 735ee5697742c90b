"""A folder of token shards, local or remote: its index, and the local path of each shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.config.errors import ConfigProblem
from trainer.data import index
from trainer.data.index import DTYPES, Index, Shard
from trainer.data.remote import RemoteFolder, is_remote
from trainer.data.shard_cache import ShardCache, default_cache


@dataclass(frozen=True)
class Reading:
    """How a run reads its shards."""

    seed: int = 0
    window: int = 0
    """Shards that are shuffled together; 0 means all."""
    cache: str = ""
    """Folder for copies of remote shards; empty means the default."""
    cache_bytes: int = 0
    """Size above which copies are removed; 0 means never."""

    def open_folder(self, path: str) -> ShardFolder:
        """Return the folder at a path or address; its index is not read yet."""
        if not is_remote(path):
            return LocalFolder(Path(path))
        folder = Path(self.cache) if self.cache else default_cache()
        return CachedFolder(RemoteFolder(path), ShardCache(folder, self.cache_bytes))


LOCAL = Reading()
REPAIR = "copy it again, or prepare the folder again"


class ShardFolder(Protocol):
    """A folder that has an index.json and the shards that it lists."""

    def read_index(self) -> Index:
        """Return the index, or raise a ConfigError that says why it cannot be read."""

    def check_files(self, contents: Index) -> Iterator[ConfigProblem]:
        """Yield the problems of files that can be checked without reading them."""

    def get(self, shard: Shard, size: int) -> Path:
        """Return the path of a shard of `size` bytes."""


class LocalFolder:
    """A folder on a filesystem of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_index(self) -> Index:
        return index.read(self._path)

    def check_files(self, contents: Index) -> Iterator[ConfigProblem]:
        for shard in contents.shards:
            path, expected = self._path / shard.file, count_bytes(contents, shard)
            if not path.exists():
                yield ConfigProblem("data.path", f"{path} is missing", "prepare the folder again")
            elif path.stat().st_size != expected:
                message = f"{path} has {path.stat().st_size} bytes instead of {expected}"
                yield ConfigProblem("data.path", message, REPAIR)

    def get(self, shard: Shard, size: int) -> Path:  # noqa: ARG002 - the sizes were checked before
        return self._path / shard.file


class CachedFolder:
    """A remote folder whose shards are read through a local cache, which checks them."""

    def __init__(self, remote: RemoteFolder, cache: ShardCache) -> None:
        self._remote = remote
        self._cache = cache

    def read_index(self) -> Index:
        return index.parse(self._remote.read(index.NAME), f"{self._remote.url}/{index.NAME}")

    def check_files(self, contents: Index) -> Iterator[ConfigProblem]:  # noqa: ARG002
        return iter(())

    def get(self, shard: Shard, size: int) -> Path:
        return self._cache.get(self._remote, shard, size)

    def get_ahead(self, shard: Shard, size: int) -> bool:
        """Download a shard unless another process does; return whether it is present now."""
        return self._cache.get_ahead(self._remote, shard, size)


def count_bytes(contents: Index, shard: Shard) -> int:
    """Return the size of a shard."""
    return shard.tokens * np.dtype(DTYPES[contents.dtype]).itemsize
