"""Write folders of token shards with given tokens, and read them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from trainer.data import index
from trainer.data.index import Index, Shard


def write_shards(folder: Path, *tokens, dtype="uint16", vocab_size=100) -> Path:
    folder.mkdir()
    listed = []
    for number, values in enumerate(tokens):
        raw = np.asarray(values, index.DTYPES[dtype]).tobytes()
        (folder / f"shard-{number:05d}.bin").write_bytes(raw)
        digest = hashlib.sha256(raw).hexdigest()
        listed.append(Shard(f"shard-{number:05d}.bin", len(values), int(max(values, default=0)), digest))
    index.write(folder, Index(dtype, vocab_size, "bytes", None, tuple(listed)))
    return folder


def read_tokens(folder: Path) -> np.ndarray:
    contents = json.loads((folder / "index.json").read_text())
    dtype = index.DTYPES[contents["dtype"]]
    return np.concatenate([np.fromfile(folder / shard["file"], dtype) for shard in contents["shards"]])
