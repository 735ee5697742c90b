"""index.json: what a folder of token shards holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem

VERSION = 1
NAME = "index.json"
DTYPES = {"uint16": "<u2", "uint32": "<u4"}


@dataclass(frozen=True)
class Shard:
    file: str
    tokens: int
    max_token: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """`eos` is the token after each document, if there is one; `vocab_size` is one more than the largest token."""

    dtype: str
    vocab_size: int
    tokenizer: str
    eos: int | None
    shards: tuple[Shard, ...]
    version: int = VERSION


def write(folder: Path, index: Index) -> None:
    write_durably(folder / NAME, json.dumps({"version": VERSION} | asdict(index), indent=2) + "\n")


def read(folder: Path) -> Index:
    """The index, or a ConfigError that says why there is none."""
    if not folder.is_dir():
        raise _error(f"there is no folder {folder}", f"make it: python -m trainer prepare INPUT... --out {folder}")
    path = folder / NAME
    if not path.exists():
        again = f"run (again): python -m trainer prepare INPUT... --out {folder}"
        if any(folder.glob("*.bin")):
            raise _error(f"{folder} has shards but no index.json: its preparation did not end", again)
        if any(folder.iterdir()):
            fix = f"if it is the text: python -m trainer prepare {folder} --out SHARDS, then data.path=SHARDS"
            raise _error(f"{folder} has no token shards", fix)
        raise _error(f"{folder} is empty", again)
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        fix = "prepare the folder again, or use the version of muster that made it"
        raise _error(f"{path} is not an index of token shards of version {VERSION} ({error})", fix) from error


def write_durably(path: Path, text: str) -> None:
    """All of it or nothing, also after a power cut."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    partial.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _parse(raw: dict[str, Any]) -> Index:
    if raw["version"] != VERSION:
        raise ValueError(f"its version is {raw['version']}")
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"its dtype is {raw['dtype']}, allowed are {', '.join(DTYPES)}")
    shards = tuple(Shard(**shard) for shard in raw["shards"])
    return Index(**(raw | {"shards": shards}))


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("data.path", message, fix)])
