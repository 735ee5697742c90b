"""The bundle: trainer and job scripts as one archive, named by its content; the same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

FOLDERS = ("trainer", "simulator/calibrate", "slurm/jobs", "slurm/fabric")


@dataclass(frozen=True)
class Bundle:
    digest: str
    archive: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        return sha256(self.archive).hexdigest()


def pack(root: Path, environment: str) -> Bundle:
    """Packs the shipped folders, with a link `env` to the training environment beside them."""
    return archive(root, files(root, FOLDERS), {}, {"env": environment})


def archive(
    root: Path, paths: Iterable[Path], content: Mapping[str, bytes], links: Mapping[str, str] | None = None
) -> Bundle:
    """Files of the repository, other content by name, and links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in paths:
            tar.addfile(_entry(path, str(path.relative_to(root))), io.BytesIO(path.read_bytes()))
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for name, target in sorted((links or {}).items()):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    data = buffer.getvalue()
    return Bundle(sha256(data).hexdigest()[:16], data)


def files(root: Path, folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    """Nothing of this machine (times, owners, umask) goes in: the digest is of names, contents and the execute bit."""
    entry = tarfile.TarInfo(name)
    stat = path.stat()
    entry.size = stat.st_size
    entry.mode = 0o755 if stat.st_mode & 0o100 else 0o644
    return entry
