"""Programs of nodes run from a folder to which they unpack themselves, so that Python keeps their bytecode."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bootstrap import unpack_program
from bootstrap.program import pack_program
from bootstrap.steps import health

REPO = Path(__file__).parents[2]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program of a node whose folders are in `tmp_path`."""
    monkeypatch.setattr(unpack_program, "INSTALLED", str(tmp_path))
    monkeypatch.setattr(unpack_program, "UNPACKED", str(tmp_path / "run" / "programs"))
    return write_program(tmp_path / "health.pyz")


def write_program(path: Path) -> Path:
    new = path.with_suffix(".new")
    new.write_bytes(pack_program(REPO, health.SOURCES, health.START))
    return new.replace(path)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Return a function that starts a program and returns where it imports its modules from."""

    def start_program(program: Path) -> Path:
        monkeypatch.setattr(sys, "path", [str(program), *sys.path[1:]])
        unpack_program.use_unpacked()
        return Path(sys.path[0])

    return start_program


def test_a_program_is_unpacked_once(archive: Path, start: Callable[[Path], Path]) -> None:
    folder = start(archive)
    assert (folder / "slurm/health/__main__.py").read_bytes() == (REPO / "slurm/health/__main__.py").read_bytes()
    (folder / "mark").touch()
    assert start(archive) == folder
    assert (folder / "mark").exists()
    assert list(folder.parent.iterdir()) == [folder]


def test_the_next_release_has_a_folder_of_its_own(archive: Path, start: Callable[[Path], Path]) -> None:
    before = start(archive)
    assert start(write_program(archive)) != before


def test_everyone_can_read_a_folder_that_a_process_with_another_umask_created(
    archive: Path, start: Callable[[Path], Path]
) -> None:
    umask = os.umask(0o077)
    try:
        folder = start(archive)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "slurm", folder / "slurm/health/check.py")}
    assert modes == {0o755, 0o644}


def test_a_folder_that_another_process_created_meanwhile_is_used(
    archive: Path, start: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def lose(new: str, folder: str) -> None:
        Path(folder).mkdir()
        Path(folder, "theirs").touch()
        rename(new, folder)

    monkeypatch.setattr(os, "rename", lose)
    folder = start(archive)
    assert (folder / "theirs").exists()
    assert list(folder.parent.iterdir()) == [folder]


def test_without_the_folder_a_program_runs_from_its_zip_file(archive: Path, start: Callable[[Path], Path]) -> None:
    (archive.parent / "run").touch()
    assert start(archive) == archive


def test_a_program_elsewhere_is_not_unpacked(archive: Path, start: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = archive.rename(tmp_path / "copy" / "health.pyz")
    assert start(copy) == copy


def test_the_program_runs_from_the_folder_with_bytecode(tmp_path: Path) -> None:
    """The packed program itself, with other folders written into it."""
    text = (REPO / "bootstrap/unpack_program.py").read_text()
    text = text.replace('"/etc/muster"', f'"{tmp_path}"').replace('"/run/muster/programs"', f'"{tmp_path}/run"')
    root = tmp_path / "root"
    (root / "bootstrap").mkdir(parents=True)
    for room in ("cluster", "slurm"):
        (root / room).symlink_to(REPO / room)
    (root / "bootstrap/unpack_program.py").write_text(text)
    program = tmp_path / "health.pyz"
    program.write_bytes(pack_program(root, health.SOURCES, health.START))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-S", program], capture_output=True, text=True, env=environment)
    assert done.stderr.startswith("usage: ")
    (folder,) = (tmp_path / "run").iterdir()
    assert list((folder / "slurm/health/__pycache__").glob("check.*.pyc"))
