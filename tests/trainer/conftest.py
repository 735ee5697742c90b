"""Fixtures of the trainer's tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Triton kernels run on the CPU in its interpreter. Triton reads this when it is imported.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def matmul_rate() -> None:
    """Let runs in this process use the rate that is measured once, as those in forks do."""
    if find_spec("torch"):
        from tests.trainer import matmul_rate  # noqa: F401 - the import replaces the measurement


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MB: the one of the tests' container, or one that root mounts."""
    disk = os.environ.get("MUSTER_SMALL_DISK")
    if disk:
        folder_on_disk = Path(tempfile.mkdtemp(dir=disk))
        yield folder_on_disk
        shutil.rmtree(folder_on_disk)
        return
    mounted = tmp_path / "small"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
