"""Directories for half-made things. What is ready is renamed out; the rest never looks finished."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup.paths import Paths


@contextmanager
def fresh(paths: Paths, name: str) -> Iterator[Path]:
    """An empty directory, whatever a killed run left there; gone again afterwards."""
    directory = paths.scratch / name
    _remove(directory)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    # rm rather than rmtree: what a killed debootstrap left mounted below must not be walked into.
    if directory.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=False)
