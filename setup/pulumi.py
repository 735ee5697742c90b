"""The Pulumi CLI: one on PATH that Pulumi.yaml accepts, else the official release if pinned, else our own build."""

import hashlib
import os
import shutil
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

from setup import pins, pulumi_go
from setup.facts import Facts
from setup.paths import Paths, scratch_directory
from setup.pins import is_at_least
from setup.run import SetupError, ask, raise_if_stopped, run

RELEASES = "https://get.pulumi.com/releases/sdk"
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
CONNECT_TIMEOUT_S = 8
MB = 1 << 20


def is_installed(paths: Paths) -> bool:
    """Return whether a complete Pulumi of an accepted version is in the cache or on PATH."""
    return is_complete(paths.pulumi / "bin") or is_on_path()


def is_complete(binaries: Path) -> bool:
    """Return whether the directory holds all executables that muster uses."""
    return all(os.access(binaries / name, os.X_OK) for name in pins.PULUMI_FILES)


def is_on_path() -> bool:
    """Return whether PATH holds all executables, in a version that Pulumi.yaml accepts."""
    if not all(shutil.which(name) for name in pins.PULUMI_FILES):
        return False
    version = ask(["pulumi", "version"]).out
    return is_at_least(version, pins.PULUMI) and not is_at_least(version, pins.PULUMI_BELOW)


def install(paths: Paths, facts: Facts, log: Path) -> None:
    """Download or build Pulumi, test it, and move it into the cache."""
    with scratch_directory(paths, "pulumi") as scratch:
        staging = scratch / "staging"
        _obtain(paths, facts, staging, log)
        run([staging / "bin" / "pulumi", "version"], log)
        if paths.pulumi.exists():
            shutil.rmtree(paths.pulumi)
        paths.pulumi.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(paths.pulumi)


def _obtain(paths: Paths, facts: Facts, staging: Path, log: Path) -> None:
    if facts.reach.get("release"):
        try:
            fetch_release(facts.machine, staging, log)
            return
        except SetupError as error:
            # A file with another checksum may be an attack, so this is not only in the log.
            print(f"pulumi: {error}; building from Go modules instead", flush=True)
            with log.open("a") as note:
                note.write(f"{error}; building from Go modules instead\n")
            shutil.rmtree(staging)
    pulumi_go.build(paths, facts.machine, staging, log)


def archive_name(machine: str) -> str:
    """Return the file name of the official release for a processor."""
    return f"pulumi-v{pins.PULUMI}-linux-{ARCHITECTURES[machine]}.tar.gz"


def is_release_reachable(machine: str) -> bool:
    """Return whether the official release has a pinned checksum and can be downloaded from here."""
    if machine not in pins.PULUMI_SHA256:
        return False
    request = urllib.request.Request(f"{RELEASES}/{archive_name(machine)}", method="HEAD")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S) as answer:  # noqa: S310
            return bool(answer.status == 200)  # noqa: PLR2004
    except (OSError, HTTPException):
        return False


def fetch_release(machine: str, staging: Path, log: Path) -> None:
    """Download the official release, compare it with its pinned checksum and put the executables into staging/bin."""
    name = archive_name(machine)
    archive = staging / name
    pinned = pins.PULUMI_SHA256[machine]
    staging.mkdir()
    try:
        actual = _download(f"{RELEASES}/{name}", archive, log)
    except (OSError, HTTPException) as error:
        raise SetupError(f"cannot download {RELEASES}/{name}: {error}") from None
    if actual != pinned:
        raise SetupError(f"{name} has SHA-256 {actual}, setup/pins.py has {pinned}: not used")
    unpack(archive, staging / "bin")
    archive.unlink()


def unpack(archive: Path, destination: Path) -> None:
    """Extract the executables that muster uses from the release."""
    destination.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        files = {entry.name for entry in tar if entry.isfile()}
        for name in pins.PULUMI_FILES:
            content = tar.extractfile(f"pulumi/{name}") if f"pulumi/{name}" in files else None
            if content is None:
                raise SetupError(f"{archive.name} has no pulumi/{name}: not used")
            (destination / name).write_bytes(content.read())
            (destination / name).chmod(0o755)


def _download(url: str, target: Path, log: Path) -> str:
    """Download a file and return its SHA-256."""
    digest = hashlib.sha256()
    with (
        urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as answer,  # noqa: S310
        target.open("wb") as file,
        log.open("a") as note,
    ):
        total_mb = int(answer.headers.get("Content-Length", 0)) // MB
        size = 0
        while chunk := answer.read(4 * MB):
            raise_if_stopped()
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
            note.write(f"{target.name}: {size // MB} of {total_mb} MB\n")
            note.flush()
    return digest.hexdigest()
