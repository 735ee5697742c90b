"""The file that `muster backup` writes: a tar file of parts, whose last member SHA256SUMS proves that it is complete.

A stranger can check it without muster: `tar -xf ARCHIVE && sha256sum -c SHA256SUMS`. It is written under another name
and renamed once it is on the disk, so a file with the name of an archive is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

FORMAT = 1
SUFFIX = ".backup.tar"
PARTIAL = ".partial"
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
CONTROLLER = "controller.tar.gz"
"""Part with the queue and the accounting."""
CHUNK = 2**20
_BLOCK = 512
# Docker, and with it the cluster that is backed up, uses the same disk on most machines: it must not be filled up.
_RESERVE = 2**30
_RESERVED_SHARE = 20

OnBytes = Callable[[int], None]
"""Is called with the number of bytes that were written or read since the last call."""


class ArchiveError(Exception):
    """An archive cannot be written or must not be used."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


@dataclass(frozen=True)
class Manifest:
    """What an archive contains."""

    created: str
    """ISO 8601 in UTC."""
    muster: str
    """Version that wrote it."""
    stack: str
    cluster: str
    slurm: str
    """Release of Slurm whose formats the queue and the accounting have."""
    snapshot: str
    """Queue and accounting as text, to compare with after a restore."""
    storage: dict[str, int]
    """Bytes of the files of each shared filesystem in the archive."""
    format: int = FORMAT


def storage_part(storage: str) -> str:
    """Return the name of the part with the files of a shared filesystem."""
    return f"storage-{storage}.tar.gz"


class ArchiveWriter:
    """An archive that is being written."""

    def __init__(self, stream: IO[bytes], folder: Path, on_bytes: OnBytes) -> None:
        self._stream, self._folder, self._on_bytes = stream, folder, on_bytes
        self._sums: dict[str, str] = {}

    def add(self, name: str, chunks: Iterable[bytes]) -> None:
        """Add a part; its size is known only afterwards, so its header is written last."""
        header, digest, size = self._stream.tell(), sha256(), 0
        self._stream.write(bytes(_BLOCK))
        for chunk in chunks:
            self._require_space(len(chunk))
            self._stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            self._on_bytes(len(chunk))
        self._stream.write(bytes(-size % _BLOCK))
        end = self._stream.tell()
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, int(time.time())
        self._stream.seek(header)
        # The GNU format has room for any size in a single block.
        self._stream.write(member.tobuf(tarfile.GNU_FORMAT))
        self._stream.seek(end)
        self._sums[name] = digest.hexdigest()

    def finish(self, manifest: Manifest) -> None:
        """Add the manifest and the sums, and wait until everything is on the disk."""
        self.add(MANIFEST, [json.dumps(asdict(manifest), indent=1).encode()])
        self.add(SUMS, ["".join(_format_sum(*item) for item in self._sums.items()).encode()])
        self._stream.write(bytes(2 * _BLOCK))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _require_space(self, size: int) -> None:
        disk = shutil.disk_usage(self._folder)
        if disk.free - size < min(_RESERVE, disk.total // _RESERVED_SHARE):
            raise _full_disk(self._folder, disk.free)


@contextmanager
def create_archive(path: Path, on_bytes: OnBytes) -> Iterator[ArchiveWriter]:
    """Write an archive that gets its name at the end of the block; nothing remains if the block fails.

    A folder that exists keeps its mode: it may be shared, as /tmp is.
    """
    folder, partial = path.parent, path.with_name(path.name + PARTIAL)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b") as stream:
            yield ArchiveWriter(stream, folder, on_bytes)
        partial.rename(path)
        _sync_folder(folder)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written: {error.strerror}", "free space, or use --to FOLDER") from None
    finally:
        with suppress(NotADirectoryError):
            partial.unlink(missing_ok=True)


def remove_partial(folder: Path, stack: str) -> None:
    """Remove what killed backups of a stack left; the caller holds the stack's lock."""
    for file in folder.glob(f"{stack}-*{SUFFIX}{PARTIAL}"):
        file.unlink(missing_ok=True)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of an archive; raise ArchiveError if it is unreadable or of another format."""
    with _opened(path) as archive:
        return _parse_manifest(path, _read(path, archive, MANIFEST))


def verify_archive(path: Path, on_bytes: OnBytes) -> Manifest:
    """Return the manifest after comparing every part with its sum; raise ArchiveError if one is missing or damaged."""
    with _opened(path) as archive:
        manifest = _parse_manifest(path, _read(path, archive, MANIFEST))
        actual = {name: _hash(path, archive, name, on_bytes) for name in archive.getnames() if name != SUMS}
        expected = _read(path, archive, SUMS).decode(errors="replace")
        if missing := sorted({CONTROLLER, *map(storage_part, manifest.storage)} - set(actual)):
            raise _damaged(path, f"{', '.join(missing)} is missing")
        for name, digest in actual.items():
            if _format_sum(name, digest) not in expected:
                raise _damaged(path, f"the SHA-256 of {name} is {digest}, which is not in {SUMS}")
        if expected != "".join(_format_sum(*item) for item in actual.items()):
            raise _damaged(path, f"{SUMS} has more than the sums of the other members")
    return manifest


def read_part(path: Path, name: str, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield a part in chunks."""
    with _opened(path) as archive:
        for chunk in _read_chunks(path, archive, name):
            yield chunk
            on_bytes(len(chunk))


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except tarfile.TarError as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be read: {error.strerror}", "`muster backup list` shows the archives"
        ) from None


def _read_chunks(path: Path, archive: tarfile.TarFile, name: str) -> Iterator[bytes]:
    try:
        part = archive.extractfile(name)
    except KeyError:
        part = None
    if part is None:
        raise _damaged(path, f"{name} is missing")
    while chunk := part.read(CHUNK):
        yield chunk


def _read(path: Path, archive: tarfile.TarFile, name: str) -> bytes:
    return b"".join(_read_chunks(path, archive, name))


def _hash(path: Path, archive: tarfile.TarFile, name: str, on_bytes: OnBytes) -> str:
    digest = sha256()
    for chunk in _read_chunks(path, archive, name):
        digest.update(chunk)
        on_bytes(len(chunk))
    return digest.hexdigest()


def _format_sum(name: str, digest: str) -> str:
    """Return a line as `sha256sum` prints it."""
    return f"{digest}  {name}\n"


def _parse_manifest(path: Path, text: bytes) -> Manifest:
    try:
        values: dict[str, Any] = json.loads(text)
        if values["format"] != FORMAT:
            what = f"{path} has format {values['format']}, written by muster {values['muster']}; allowed: {FORMAT}"
            raise ArchiveError(what, "restore it with the version of muster that wrote it")
        return Manifest(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"{MANIFEST}: {error}") from None


def _damaged(path: Path, what: str) -> ArchiveError:
    return ArchiveError(f"{path} is damaged or incomplete: {what}", "use another archive, or another copy of this one")


def _full_disk(folder: Path, free: int) -> ArchiveError:
    what = f"the disk of {folder} would be full: {free / 1e9:.1f} GB are free, and no archive was written"
    return ArchiveError(what, "free space, or write it elsewhere with --to FOLDER")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
