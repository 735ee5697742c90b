"""The list of a checkpoint's files with their checksums, written last: what it does not vouch for is not loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.folder import MANIFEST

# One checksum per piece, so that cores and ranks share the hashing of a large file. A file of one piece has its sha256.
PIECE = 64 << 20
THREADS = 4
VERSION = 1


class Damaged(Exception):
    """A file of a checkpoint is not what was written; the message names it."""


@dataclass(frozen=True)
class FileSum:
    size: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    step: int
    world_size: int
    token: str
    metric: float | None
    files: Mapping[str, FileSum]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def sums(content: bytes | memoryview) -> FileSum:
    view = memoryview(content)
    pieces = [view[begin : begin + PIECE] for begin in range(0, max(view.nbytes, 1), PIECE)]
    with ThreadPoolExecutor(THREADS) as threads:
        return FileSum(view.nbytes, tuple(threads.map(_sum, pieces)))


def to_bytes(manifest: Manifest) -> bytes:
    body: dict[str, Any] = {"version": VERSION, "piece": PIECE, **asdict(manifest)}
    return json.dumps({**body, "check": _check(body)}, indent=1).encode()


def read(path: Path) -> Manifest:
    """The manifest of the checkpoint in this folder, if it is whole."""
    try:
        body = json.loads((path / MANIFEST).read_bytes())
        check = body.pop("check")
    except FileNotFoundError as error:
        raise Damaged(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} is torn: {error}") from error
    if check != _check(body):
        raise Damaged(f"{MANIFEST} was changed after it was written")
    if (body["version"], body["piece"]) != (VERSION, PIECE):
        raise Damaged(f"{MANIFEST} is of version {body['version']}, this trainer reads {VERSION}")
    files = {name: FileSum(file["size"], tuple(file["sha256"])) for name, file in body["files"].items()}
    return Manifest(body["step"], body["world_size"], body["token"], body["metric"], files)


def wrong_sizes(path: Path, manifest: Manifest) -> list[str]:
    bad = []
    for name, expected in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            bad.append(f"{name}: {error.strerror}")
            continue
        if size != expected.size:
            bad.append(f"{name} has {size} bytes instead of {expected.size}")
    return bad


def wrong_sums(path: Path, manifest: Manifest, share: int, shares: int) -> list[str]:
    """Which pieces among this share of all pieces have other bytes than were written."""
    pieces = [(name, number) for name, file in sorted(manifest.files.items()) for number in range(len(file.sha256))]
    with ThreadPoolExecutor(THREADS) as threads:
        found = threads.map(lambda piece: _wrong_piece(path, manifest, *piece), pieces[share::shares])
        return [text for text in found if text]


def _wrong_piece(path: Path, manifest: Manifest, name: str, number: int) -> str:
    expected = manifest.files[name]
    try:
        with open(path / name, "rb") as file:
            file.seek(number * PIECE)
            found = _sum(file.read(PIECE))
    except OSError as error:
        return f"{name}: {error.strerror}"
    if found == expected.sha256[number]:
        return ""
    end = min((number + 1) * PIECE, expected.size)
    return f"{name} is corrupt: checksum of bytes {number * PIECE} to {end} differs"


def _sum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _check(body: Mapping[str, Any]) -> str:
    return _sum(json.dumps(body, sort_keys=True).encode())
