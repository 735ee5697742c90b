"""Wheels of what a node's own Python needs, fetched where there is a package index, for machines that may have none."""

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
# Of the images that nodes are made from: Ubuntu 22.04 gets 3.11, Ubuntu 24.04 has 3.12, Debian 13 has 3.13.
PYTHONS = ("3.11", "3.12", "3.13")
# Oldest glibc first: wheels name the oldest they run with.
TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
DOWNLOAD_S = 600.0


class NoWheels(RuntimeError):
    """The package index gave no complete set."""


def wheels(root: Path, cache: Path, architecture: Architecture = "x86_64", pythons: Sequence[str] = PYTHONS) -> Path:
    """A folder with the wheels of the lock file for these Pythons; fetched once per lock file."""
    lock, folder = root / LOCK, place(root, cache, architecture, pythons)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for python in pythons:
            _download(command(lock, new, architecture, python))
        new.chmod(0o755)
        _publish(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def place(root: Path, cache: Path, architecture: Architecture = "x86_64", pythons: Sequence[str] = PYTHONS) -> Path:
    """Where they lie once they are there."""
    key = sha256("\n".join([architecture, *pythons, *TAGS]).encode() + (root / LOCK).read_bytes()).hexdigest()[:16]
    return cache / "wheels" / key


def command(lock: Path, folder: Path, architecture: Architecture, python: str) -> list[str]:
    platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_{architecture}")]
    only = ["--only-binary", ":all:", "--require-hashes", "--no-deps", "--implementation", "cp"]
    quiet = ["--disable-pip-version-check", "--quiet"]
    version = ["--python-version", python]
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        *quiet,
        *only,
        *platforms,
        *version,
        "-r",
        str(lock),
        "-d",
        str(folder),
    ]


def _download(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise NoWheels(f"{LOCK}: {said}. Fix: a way to the Python package index from here; nodes then need none")


def _publish(new: Path, folder: Path) -> None:
    """Two runs may finish at the same time; what either fetched is the same."""
    try:
        new.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
