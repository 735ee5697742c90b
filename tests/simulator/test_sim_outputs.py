"""Unwritable output paths are refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.commands.outputs import check_file, check_folder
from trainer.config.errors import ConfigError

KINDS = (".png", ".svg")


def test_places_that_can_be_written_are_taken_and_left_as_they_were(tmp_path: Path) -> None:
    there = tmp_path / "there.svg"
    there.write_text("before")
    check_file("--picture", tmp_path / "new.png", KINDS)
    check_file("--picture", there, KINDS)
    check_folder("--write", tmp_path)
    check_folder("--write", tmp_path / "a" / "b")
    assert [file.name for file in tmp_path.iterdir()] == ["there.svg"]
    assert there.read_text() == "before"


def test_a_name_without_a_folder_is_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_unwritable_path_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file.png").touch()
    with pytest.raises(ConfigError, match=message):
        check_file("--picture", tmp_path / name, KINDS)


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/x", "/proc/x/y"])
def test_a_folder_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--write: .*; allowed: .*; name another (folder|place)"):
        check_folder("--write", tmp_path / name)
