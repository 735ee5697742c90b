"""The manifest of a checkpoint: its files with their checksums, written last. Only files that match are loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.folder import MANIFEST
from trainer.checkpoint.read_retry import is_damage, read_with_retries

# Each piece has its own checksum, so that cores and ranks share the hashing of a large file. The checksum of a file of
# a single piece is its sha256.
PIECE_BYTES = 64 << 20
THREADS = 4
VERSION = 1


class DamagedCheckpoint(Exception):
    """Raised if a file of a checkpoint is missing or has changed since it was written; the message names it."""


@dataclass(frozen=True)
class FileChecksum:
    """The size of a file in bytes and the checksum of each of its pieces."""

    size: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint; the field names are the keys of manifest.json."""

    step: int
    world_size: int
    token: str
    metric: float | None
    files: Mapping[str, FileChecksum]
    metric_name: str = ""
    """The figure that `metric` is a value of, such as loss; empty if it is unknown, as in older checkpoints."""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())


def compute_checksum(content: bytes | memoryview) -> FileChecksum:
    """Return the checksum of a file with this content."""
    view = memoryview(content)
    pieces = [view[begin : begin + PIECE_BYTES] for begin in range(0, max(view.nbytes, 1), PIECE_BYTES)]
    with ThreadPoolExecutor(THREADS) as threads:
        return FileChecksum(view.nbytes, tuple(threads.map(_hash, pieces)))


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of manifest.json, with a checksum of itself."""
    body: dict[str, Any] = {"version": VERSION, "piece": PIECE_BYTES, **asdict(manifest)}
    return json.dumps({**body, "check": _hash_body(body)}, indent=1).encode()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the checkpoint in this folder; raise DamagedCheckpoint if it is not intact.

    An OSError says nothing about the checkpoint: the manifest could not be read.
    """
    try:
        content = (path / MANIFEST).read_bytes()
    except OSError as error:
        if not is_damage(error):
            raise
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is no file: {error.strerror}"
        raise DamagedCheckpoint(f"{MANIFEST} {problem}") from error
    try:
        body = json.loads(content)
        check = body.pop("check")
    except (ValueError, KeyError, AttributeError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} is incomplete: {error}") from error
    if check != _hash_body(body):
        raise DamagedCheckpoint(f"{MANIFEST} was changed after it was written")
    if (body["version"], body["piece"]) != (VERSION, PIECE_BYTES):
        raise DamagedCheckpoint(f"{MANIFEST} has version {body['version']}, this trainer reads {VERSION}")
    return parse_body(body)


def parse_body(body: Mapping[str, Any]) -> Manifest:
    """Return the manifest with these fields, as JSON has them."""
    files = {name: FileChecksum(file["size"], tuple(file["sha256"])) for name, file in body["files"].items()}
    return Manifest(body["step"], body["world_size"], body["token"], body["metric"], files, body.get("metric_name", ""))


def check_sizes(path: Path, manifest: Manifest) -> list[str]:
    """Return the files that are missing or do not have the size that was written.

    Raise UnreadableCheckpoint if the filesystem does not say so.
    """
    problems = []
    for name, expected in manifest.files.items():
        file = path / name
        try:
            size = read_with_retries(file, file.stat).st_size
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
            continue
        if size != expected.size:
            problems.append(f"{name} has {size} bytes instead of {expected.size}")
    return problems


def check_content(path: Path, manifest: Manifest, share: int, shares: int) -> list[str]:
    """Return the pieces whose bytes have changed since they were written, among this share of all pieces.

    Raise UnreadableCheckpoint if one of them cannot be read.
    """
    pieces = [(name, number) for name, file in sorted(manifest.files.items()) for number in range(len(file.sha256))]
    with ThreadPoolExecutor(THREADS) as threads:
        problems = threads.map(lambda piece: _check_piece(path, manifest, *piece), pieces[share::shares])
        return [problem for problem in problems if problem]


def _check_piece(path: Path, manifest: Manifest, name: str, number: int) -> str:
    expected = manifest.files[name]
    try:
        checksum = read_with_retries(path / name, lambda: _hash_piece(path / name, number))
    except OSError as error:
        return f"{name}: {error.strerror}"
    if checksum == expected.sha256[number]:
        return ""
    end = min((number + 1) * PIECE_BYTES, expected.size)
    return f"{name} is corrupt: checksum of bytes {number * PIECE_BYTES} to {end} differs"


def _hash_piece(path: Path, number: int) -> str:
    with open(path, "rb") as file:
        file.seek(number * PIECE_BYTES)
        return _hash(file.read(PIECE_BYTES))


def _hash(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash_body(body: Mapping[str, Any]) -> str:
    return _hash(json.dumps(body, sort_keys=True).encode())
