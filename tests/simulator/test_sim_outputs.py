"""Unwritable output paths are rejected before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.commands.outputs import check_file, check_folder
from trainer.config.errors import ConfigError

KINDS = (".png", ".svg")


def test_writable_paths_are_accepted_and_left_unchanged(tmp_path: Path) -> None:
    existing = tmp_path / "existing.svg"
    existing.write_text("before")
    check_file("--picture", tmp_path / "new.png", KINDS)
    check_file("--picture", existing, KINDS)
    check_folder("--write", tmp_path)
    check_folder("--write", tmp_path / "a" / "b")
    assert [file.name for file in tmp_path.iterdir()] == ["existing.svg"]
    assert existing.read_text() == "before"


def test_relative_path_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_file("--picture", Path("x.png"), KINDS)
    check_folder("--write", Path("out/deeper"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.jpgx", r"--picture: 'x.jpgx'; allowed: a name that ends with .png or .svg; write for example x.png"),
        ("nosuch/x.png", r"there is no folder .*nosuch; allowed: a file in an existing folder; create it: mkdir"),
        ("folder.png", r"folder.png is a folder; allowed: a file; name a file in "),
        ("file.png/x.png", r"there is no folder .*file.png; allowed: "),
        ("/proc/x.png", r"/proc/x.png cannot be written \(/proc: .*\); allowed: a writable place; name "),
    ],
)
def test_unwritable_file_is_rejected(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file.png").touch()
    with pytest.raises(ConfigError, match=message):
        check_file("--picture", tmp_path / name, KINDS)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/x", "/proc/x/y"])
def test_unwritable_folder_is_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--write: .*; allowed: .*; name another (folder|place)"):
        check_folder("--write", tmp_path / name)
