"""index.json: the contents of a folder of token shards."""

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
    """A file of tokens."""

    file: str
    tokens: int
    """Number of tokens."""
    max_token: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The shards of a folder and the tokenizer that made them."""

    dtype: str
    vocab_size: int
    """One more than the largest token that the tokenizer can produce."""
    tokenizer: str
    eos: int | None
    """Token at the end of each document, if there is one."""
    shards: tuple[Shard, ...]
    version: int = VERSION


def write(folder: Path, index: Index) -> None:
    """Write the index of a folder."""
    write_durably(folder / NAME, json.dumps({"version": VERSION} | asdict(index), indent=2) + "\n")


def read(folder: Path) -> Index:
    """Return the index of a folder, or raise a ConfigError that says why it cannot be read."""
    if not folder.is_dir():
        raise _error(f"there is no folder {folder}", f"make it: python -m trainer prepare INPUT... --out {folder}")
    path = folder / NAME
    if not path.exists():
        raise _explain_missing_index(folder)
    return parse(path.read_bytes(), str(path))


def parse(raw: bytes, where: str) -> Index:
    """Return the index in the contents of a file, or raise a ConfigError that names the file."""
    try:
        return _parse(json.loads(raw))
    except (ValueError, TypeError, KeyError) as error:
        fix = "prepare the folder again, or use the version of muster that made it"
        raise _error(f"{where} is not a valid index of token shards, version {VERSION} ({error})", fix) from error


def write_durably(path: Path, text: str) -> None:
    """Write a file completely or not at all, even if the power fails."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    """Give a complete file its final name and flush the folder."""
    partial.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _explain_missing_index(folder: Path) -> ConfigError:
    again = f"run (again): python -m trainer prepare INPUT... --out {folder}"
    if any(folder.glob("*.bin")):
        return _error(f"{folder} has shards but no index.json: its preparation did not finish", again)
    if any(folder.iterdir()):
        fix = f"if it contains text: python -m trainer prepare {folder} --out SHARDS, then data.path=SHARDS"
        return _error(f"{folder} has no token shards", fix)
    return _error(f"{folder} is empty", again)


def _parse(raw: dict[str, Any]) -> Index:
    if raw["version"] != VERSION:
        raise ValueError(f"its version is {raw['version']}")
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"its dtype is {raw['dtype']}, allowed: {', '.join(DTYPES)}")
    shards = tuple(Shard(**shard) for shard in raw["shards"])
    return Index(**(raw | {"shards": shards}))


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("data.path", message, fix)])
