"""Download the wheels that a node's own Python needs, because nodes may have no access to a package index."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

LOCK = "bootstrap/requirements.lock"
Architecture = Literal["x86_64", "aarch64"]
# Python of the machine images: 3.11 on Debian 12, 3.12 on Ubuntu 24.04, 3.13 on Debian 13 and, pinned, on Ubuntu 22.04.
PYTHONS = ("3.11", "3.12", "3.13")
# Oldest glibc first: a wheel's tag names the oldest that it runs with.
TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
DOWNLOAD_TIMEOUT_S = 600.0


class WheelsError(RuntimeError):
    """The package index did not provide every wheel of the lock file."""


def fetch_wheels(
    root: Path, cache: Path, architecture: Architecture = "x86_64", pythons: Sequence[str] = PYTHONS
) -> Path:
    """Return a folder with the wheels of the lock file for these Pythons; download them once per lock file."""
    lock, folder = root / LOCK, wheels_folder(root, cache, architecture, pythons)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for python in pythons:
            _download(download_command(lock, new, architecture, python))
        new.chmod(0o755)
        _publish(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def wheels_folder(
    root: Path, cache: Path, architecture: Architecture = "x86_64", pythons: Sequence[str] = PYTHONS
) -> Path:
    """Return the folder in which the wheels are cached; its name changes with the lock file."""
    key = sha256("\n".join([architecture, *pythons, *TAGS]).encode() + (root / LOCK).read_bytes()).hexdigest()[:16]
    return cache / "wheels" / key


def download_command(lock: Path, folder: Path, architecture: Architecture, python: str) -> list[str]:
    """Return the pip command that downloads the wheels for one version of Python."""
    return [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"),
        *("--only-binary", ":all:", "--require-hashes", "--no-deps", "--implementation", "cp"),
        *(argument for tag in TAGS for argument in ("--platform", f"{tag}_{architecture}")),
        *("--python-version", python, "-r", str(lock), "-d", str(folder)),
    ]


def _download(command: list[str]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    if completed.returncode != 0:
        line = (completed.stderr.strip().splitlines() or ["pip failed without output"])[-1]
        raise WheelsError(f"{LOCK}: {line}. Fix: give this machine access to the Python package index")


def _publish(new: Path, folder: Path) -> None:
    """Move the downloads into place, unless another run was faster with the same files."""
    try:
        new.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
