"""The scripts that copy shared files, run on real folders."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bootstrap import state_backup
from bootstrap.state_backup import CREATED_BY_UP


def sh(script: str, data: bytes = b"") -> bytes:
    return subprocess.run(["sh", "-c", script], input=data, capture_output=True, check=True).stdout


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """Return a filesystem as `up` leaves it, with a home that nobody has used."""
    mount = tmp_path / "shared"
    for name in CREATED_BY_UP:
        (mount / name).mkdir(parents=True)
        (mount / name / "file").write_text("created by up")
    home = mount / "home" / "muster"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("key")
    (home / ".bashrc").write_text("# skeleton")
    return mount


def test_a_filesystem_as_up_leaves_it_is_empty(mount: Path) -> None:
    assert sh(state_backup.find_files(str(mount), "shared")) == b""


@pytest.mark.parametrize("file", ["home/muster/note", "data", "home/env", ".hidden"])
def test_a_file_of_a_person_is_named(mount: Path, file: str) -> None:
    (mount / file).write_text("mine")
    assert sh(state_backup.find_files(str(mount), "shared")).decode().strip() == f"./{file}"


def test_on_other_storage_no_folder_is_left_out(mount: Path) -> None:
    assert sh(state_backup.find_files(str(mount), "data")) != b""


def test_files_come_back_with_modes_links_times_and_holes(mount: Path, tmp_path: Path) -> None:
    (mount / "home" / "env").mkdir()
    (mount / "home" / "env" / "mine").write_text("also called env")
    note = mount / "home" / "muster" / "note with 'quotes'"
    note.write_text("hello")
    note.chmod(0o640)
    os.utime(note, ns=(10**18, 10**18))
    os.link(note, mount / "same")
    (mount / "link").symlink_to("nowhere")
    with (mount / "sparse").open("wb") as sparse:
        sparse.truncate(10**8)
    packed = sh(state_backup.read_files(str(mount), "shared"))
    assert len(packed) < 10**5
    there = tmp_path / "there"
    (there / "home" / "muster").mkdir(parents=True)
    (there / "home" / "muster" / "note with 'quotes'").write_text("older")
    (there / "other").write_text("stays")
    sh(state_backup.write_files(str(there)), packed)
    restored = there / "home" / "muster" / note.name
    assert (restored.read_text(), restored.stat().st_mode, restored.stat().st_mtime) == ("hello", 0o100640, 10**9)
    assert (there / "same").stat().st_ino == restored.stat().st_ino
    assert (there / "link").readlink() == Path("nowhere")
    assert (there / "sparse").stat().st_size == 10**8
    assert (there / "sparse").stat().st_blocks < 1000
    assert (there / "home" / "env" / "mine").read_text() == "also called env"
    assert sorted(path.name for path in there.iterdir()) == ["home", "link", "other", "same", "sparse"]


def test_sizes_are_those_of_the_disk_without_what_up_creates(mount: Path) -> None:
    before = int(sh(state_backup.measure_files(str(mount), "shared")))
    (mount / "env" / "large").write_bytes(bytes(10**6))
    assert int(sh(state_backup.measure_files(str(mount), "shared"))) == before
    (mount / "large").write_bytes(os.urandom(10**6))
    assert int(sh(state_backup.measure_files(str(mount), "shared"))) >= before + 10**6
    assert int(sh(state_backup.free_bytes(str(mount)))) > 0
