"""The official Pulumi release: download, check against its published checksums, unpack."""

import hashlib
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

from setup import pins
from setup.run import Failed

RELEASES = "https://get.pulumi.com/releases/sdk"
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
CONNECT_S = 8
MB = 1 << 20


def archive_name(machine: str) -> str:
    return f"pulumi-v{pins.PULUMI}-linux-{ARCHITECTURES[machine]}.tar.gz"


def reachable(machine: str) -> bool:
    request = urllib.request.Request(f"{RELEASES}/{archive_name(machine)}", method="HEAD")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_S) as answer:  # noqa: S310
            return bool(answer.status == 200)  # noqa: PLR2004
    except (OSError, HTTPException):
        return False


def fetch(machine: str, made: Path, log: Path) -> None:
    """Put the four executables into made/bin."""
    name = archive_name(machine)
    archive = made / name
    made.mkdir()
    try:
        with urllib.request.urlopen(f"{RELEASES}/pulumi-{pins.PULUMI}-checksums.txt", timeout=CONNECT_S) as answer:  # noqa: S310
            wanted = published(answer.read().decode(), name)
        got = _download(f"{RELEASES}/{name}", archive, log)
    except (OSError, HTTPException) as error:
        raise Failed(f"cannot download {RELEASES}/{name}: {error}") from None
    if got != wanted:
        raise Failed(f"{name} has SHA-256 {got}, its published checksum is {wanted}: not used")
    unpack(archive, made / "bin")
    archive.unlink()


def published(checksums: str, name: str) -> str:
    for line in checksums.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].lstrip("*") == name:  # noqa: PLR2004
            return words[0].lower()
    raise Failed(f"the published checksums do not name {name}: not used")


def unpack(archive: Path, destination: Path) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        there = {entry.name for entry in tar if entry.isfile()}
        for name in pins.PULUMI_FILES:
            content = tar.extractfile(f"pulumi/{name}") if f"pulumi/{name}" in there else None
            if content is None:
                raise Failed(f"{archive.name} has no pulumi/{name}: not used")
            (destination / name).write_bytes(content.read())
            (destination / name).chmod(0o755)


def _download(url: str, target: Path, log: Path) -> str:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=CONNECT_S) as answer, target.open("wb") as file, log.open("a") as note:  # noqa: S310
        total = int(answer.headers.get("Content-Length", 0)) // MB
        done = 0
        while chunk := answer.read(4 * MB):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            note.write(f"{target.name}: {done // MB} of {total} MB\n")
            note.flush()
    return digest.hexdigest()
