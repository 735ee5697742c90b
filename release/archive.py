"""The files of a release: an archive of the committed source, the SBOM, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from release.components import list_components
from release.sbom import render_sbom

SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """A release cannot be built or is not what it should be; the message names the reason and the fix."""


def read_version(root: Path) -> str:
    """Return the version of the project file."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return str(project["project"]["version"])


def build(root: Path, folder: Path) -> list[Path]:
    """Write archive, SBOM and checksums of the current commit to a folder; the same commit gives the same bytes."""
    if changed := _git(root, "status", "--porcelain").decode().splitlines():
        raise ReleaseError(f"{len(changed)} files are not committed, first {changed[0][3:]}: commit or remove them")
    version = read_version(root)
    commit = _git(root, "rev-parse", "HEAD").decode().strip()
    created = datetime.fromtimestamp(int(_git(root, "log", "-1", "--format=%ct")), tz=UTC)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"muster-{version}.tar.gz"
    # Not compressed by git, whose gzip writes the time.
    tar = _git(root, "-c", "tar.umask=0022", "archive", "--format=tar", f"--prefix=muster-{version}/", commit)
    with archive.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
        compressed.write(tar)
    sbom = folder / f"muster-{version}.cdx.json"
    sbom.write_text(render_sbom(version, commit, created, list_components(root)))
    sums = folder / SUMS
    sums.write_text("".join(f"{compute_sha256(file)}  {file.name}\n" for file in (archive, sbom)))
    return [archive, sbom, sums]


def check_sums(folder: Path) -> list[str]:
    """Return the files of a release; raise ReleaseError if one is missing or differs from SHA256SUMS."""
    names = []
    for line in (folder / SUMS).read_text().splitlines():
        if not (entry := re.fullmatch(r"([0-9a-f]{64}) [ *](\S.*)", line)):
            raise ReleaseError(f"{folder / SUMS}: {line!r} is not a SHA-256 and a file name: download it again")
        expected, name = entry.groups()
        file = folder / Path(name).name
        if not file.is_file():
            raise ReleaseError(f"{file} is missing, {SUMS} lists it: download it again")
        if (actual := compute_sha256(file)) != expected:
            raise ReleaseError(f"{file} has SHA-256 {actual}, {SUMS} has {expected}: do not use it")
        names.append(name)
    return names


def compute_sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout
