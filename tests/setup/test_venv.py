"""The virtual environment: a real pip installs it from a small lock file, and repairs an incomplete one."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from setup import venv
from setup.paths import Paths
from setup.run import SetupError
from tests.setup.machine import machine

pytestmark = pytest.mark.engine

# A minimal build backend, so that an editable install works without network.
BACKEND = """
import pathlib, zipfile

def build_editable(directory, settings=None, metadata=None):
    name = "sample-1-py3-none-any.whl"
    files = {
        "sample.pth": str(pathlib.Path.cwd()),
        "sample-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: sample\\nVersion: 1\\n",
        "sample-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr("sample-1.dist-info/RECORD", "".join(f"{path},,\\n" for path in files))
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "sample"
version = "1"
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    root = tmp_path / "repo"
    root.mkdir()
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "requirements.lock").write_text(f"tiny==1 --hash=sha256:{_build_wheel(wheels, 'tiny')}\n")
    return Paths(root, tmp_path / "cache")


def test_only_changed_parts_are_installed_again(paths: Paths, tmp_path: Path) -> None:
    assert not venv.is_current(paths)
    venv.install(paths, machine(), tmp_path / "log")
    assert venv.is_current(paths)
    assert _can_import(paths, "tiny, backend")

    # If only the project file changes, the packages are not installed again.
    (paths.venv / "marker").touch()
    (paths.root / "pyproject.toml").write_text(PROJECT + 'description = "other"\n')
    assert not venv.is_current(paths)
    venv.install(paths, machine(), tmp_path / "log")
    assert venv.is_current(paths)
    assert (paths.venv / "marker").exists()

    # An environment whose Python is gone is not current.
    python = paths.venv / "bin" / "python"
    python.rename(paths.venv / "bin" / "python.away")
    assert not venv.is_current(paths)

    # After a kill before the stamp was written, everything is installed again.
    (paths.venv / venv.STAMP).unlink()
    (paths.venv / "bin" / "pip").unlink()
    venv.install(paths, machine(), tmp_path / "log")
    assert venv.is_current(paths)
    assert not (paths.venv / "marker").exists()
    assert _can_import(paths, "tiny, backend")


@pytest.mark.nightly
def test_a_moved_checkout_gets_its_own_environment(paths: Paths, tmp_path: Path) -> None:
    venv.install(paths, machine(), tmp_path / "log")
    moved = Paths(tmp_path / "moved", paths.cache)
    shutil.copytree(paths.root, moved.root, symlinks=True)
    assert not venv.is_current(moved)
    venv.install(moved, machine(), tmp_path / "log")
    assert venv.is_current(moved)
    assert venv.is_current(paths)
    assert f"{moved.root}/.venv/bin/python" in (moved.venv / "bin" / "pip").read_text()
    where = [moved.venv / "bin" / "python", "-c", "import backend; print(backend.__file__)"]
    assert subprocess.check_output(where, text=True, cwd=tmp_path).strip() == str(moved.root / "backend.py")


def test_a_package_with_a_wrong_hash_is_rejected(paths: Paths, tmp_path: Path) -> None:
    (paths.root / "requirements.lock").write_text(f"tiny==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SetupError, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        venv.install(paths, machine(), tmp_path / "log")
    assert not venv.is_current(paths)


def _build_wheel(wheels: Path, name: str) -> str:
    path = wheels / f"{name}-1-py3-none-any.whl"
    files = {
        f"{name}.py": "",
        f"{name}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{name}-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
        wheel.writestr(f"{name}-1.dist-info/RECORD", "".join(f"{member},,\n" for member in files))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _can_import(paths: Paths, modules: str) -> bool:
    return subprocess.run([paths.venv / "bin" / "python", "-c", f"import {modules}"]).returncode == 0
